"""What files store, packed as floats: the gguf package says what it means."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from headstart_kernels import _native
from kernels.gemm_cases import from_bf16, random_floats, to_bf16

Q = gguf.GGMLQuantizationType
POOL = _native.ThreadPool(1)


def unpacked(rows: Any, stored: str, k: int, packed: str = "f32") -> Any:
    """The packed weight times the identity: its own numbers."""
    w = _native.pack(_native.HugeArena(), rows, stored, packed)
    x = np.eye(k, dtype=np.float32)
    y = np.empty((k, w.n), np.float32)
    _native.gemm(POOL, w, x if packed == "f32" else to_bf16(x), y)
    return y.T


@pytest.mark.parametrize(("stored", "quantised"), [("q8_0", Q.Q8_0), ("q4_0", Q.Q4_0), ("q4_1", Q.Q4_1)])
@pytest.mark.parametrize("n", [1, 15, 16, 50])
def test_blocks_mean_what_the_gguf_package_says(stored: str, quantised: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = gguf.quants.quantize(random_floats(rng, n, 96), quantised)
    assert np.array_equal(unpacked(rows, stored, 96), gguf.quants.dequantize(rows, quantised))


@pytest.mark.parametrize(("stored", "dtype"), [("f32", np.float32), ("f16", np.float16)])
@pytest.mark.parametrize("k", [1, 2, 33])
def test_plain_numbers_stay_what_they_are(stored: str, dtype: Any, k: int) -> None:
    values = random_floats(np.random.default_rng(k), 21, k).astype(dtype)
    assert np.array_equal(unpacked(values.view(np.uint8), stored, k), values.astype(np.float32))


@pytest.mark.parametrize("k", [1, 2, 33])
def test_bfloat16_is_packed_bit_by_bit_and_others_are_rounded_to_it(k: int) -> None:
    values = random_floats(np.random.default_rng(k), 21, k)
    rounded = from_bf16(to_bf16(values))
    assert np.array_equal(unpacked(to_bf16(values).view(np.uint8), "bf16", k, "bf16"), rounded)
    assert np.array_equal(unpacked(values.view(np.uint8), "f32", k, "bf16"), rounded)


def test_a_type_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="type: must be f32, f16, bf16, q8_0, q4_0 or q4_1, is q6_k"):
        unpacked(np.zeros((1, 210), np.uint8), "q6_k", 256)


def test_a_row_of_broken_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="rows: must hold whole blocks of q4_1"):
        unpacked(np.zeros((1, 30), np.uint8), "q4_1", 32)
