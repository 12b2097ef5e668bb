"""Weights that files store in blocks of small integers, of which the native engine can compute with some as they are.

Arithmetic only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from headstart.model.kv import DTYPE_BYTES
from headstart.model.layout import tensor_shapes
from headstart.model.weights import Checkpoint

BYTES_PER_WEIGHT = {"Q8_0": 34 / 32, "Q4_0": 20 / 32, "Q4_1": 20 / 32}
"""Of the stored types that can stay, as they lie in memory: the scales of a Q4_0 get a minimum beside them."""


def has_blocks(checkpoint: Checkpoint) -> bool:
    """Whether any weight is stored in blocks that can stay."""
    return any(checkpoint.stored_type(name) in BYTES_PER_WEIGHT for name in checkpoint.tensor_names)


def weight_bytes(checkpoint: Checkpoint, dtype: str, names: Iterable[str] | None = None) -> int:
    """Memory that `names`, or all tensors, take as `dtype`: one of the native runner's."""
    shapes = tensor_shapes(checkpoint.config)
    kept = BYTES_PER_WEIGHT if dtype == "quantized" else {}
    return sum(
        int(math.prod(shapes[name]) * kept.get(checkpoint.stored_type(name), DTYPE_BYTES[dtype]))
        for name in (shapes if names is None else names)
    )
