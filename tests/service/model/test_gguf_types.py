"""Every stored type that is served against the `gguf` package, and the others refused by name."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from headstart.errors import ModelError
from headstart.model.gguf_types import stored_type

SERVED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


@pytest.mark.parametrize("name", SERVED)
def test_blocks_unpack_to_the_bits_of_the_gguf_package(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(0).standard_normal((7, 96), np.float32)
    raw = quantize(values, kind).reshape(-1).view(np.uint8)
    served = stored_type(kind.value, "t")
    assert (served.name, served.block_size, served.block_bytes) == (name, *gguf.GGML_QUANT_SIZES[kind])
    unpacked = served.unpack(raw.reshape(-1, served.block_bytes)).reshape(7, 96)
    assert unpacked.dtype == np.float32
    assert np.array_equal(unpacked, dequantize(quantize(values, kind), kind).reshape(7, 96))


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGMLQuantizationType if kind.name not in SERVED])
def test_another_type_is_refused_and_named(kind: gguf.GGMLQuantizationType) -> None:
    with pytest.raises(ModelError, match=rf"tensor some\.weight is stored as ({kind.name}|type {kind.value}), .*Q4_1"):
        stored_type(kind.value, "some.weight")
