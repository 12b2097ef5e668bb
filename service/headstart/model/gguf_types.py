"""How GGUF files store numbers: plain, or in blocks of 32 with a scale (and an offset) for each block.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Blocks never cross a row. Holds no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError

BLOCK = 32
"""Numbers in a block of the quantised types."""

_Raw = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

_UNSERVED = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Names of the types that are refused, so that the error can say which it was."""


class StoredType(NamedTuple):
    """A type: `block_size` numbers take `block_bytes`. `unpack` turns raw blocks [n, block_bytes] into floats
    [n, block_size]."""

    name: str
    block_size: int
    block_bytes: int
    unpack: Callable[[_Raw], _Floats]


def stored_type(type_id: int, tensor: str) -> StoredType:
    """GGML's type of that number. Raises ModelError, naming the tensor and the type, for one that is not served."""
    if type_id not in _TYPES:
        served = ", ".join(entry.name for entry in _TYPES.values())
        name = _UNSERVED.get(type_id, f"type {type_id}")
        raise ModelError(f"tensor {tensor} is stored as {name}, which is not served: convert it to one of {served}")
    return _TYPES[type_id]


def _plain(dtype: str) -> Callable[[_Raw], _Floats]:
    def unpack(blocks: _Raw) -> _Floats:
        return blocks.view(dtype).astype(np.float32)

    return unpack


def _bf16(blocks: _Raw) -> _Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: _Raw) -> _Floats:
    return blocks[:, 2:].view(np.int8) * _halves(blocks, 1)


def _q4_0(blocks: _Raw) -> _Floats:
    return (_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)) * _halves(blocks, 1)


def _q4_1(blocks: _Raw) -> _Floats:
    scales = _halves(blocks, 2)
    values = _nibbles(blocks[:, 4:]) * scales[:, :1]
    values += scales[:, 1:]
    return values


def _halves(blocks: _Raw, count: int) -> _Floats:
    """The float16 numbers that a block begins with, [n, count]."""
    return np.ascontiguousarray(blocks[:, : 2 * count]).view("<f2").astype(np.float32)


def _nibbles(packed: _Raw) -> npt.NDArray[np.uint8]:
    """Four-bit numbers [n, 32]: the low halves of all bytes come first."""
    values: npt.NDArray[Any] = np.empty((len(packed), BLOCK), np.uint8)
    np.bitwise_and(packed, 15, out=values[:, : BLOCK // 2])
    np.right_shift(packed, 4, out=values[:, BLOCK // 2 :])
    return values


_TYPES = {
    0: StoredType("F32", 1, 4, _plain("<f4")),
    1: StoredType("F16", 1, 2, _plain("<f2")),
    30: StoredType("BF16", 1, 2, _bf16),
    8: StoredType("Q8_0", BLOCK, 34, _q8_0),
    2: StoredType("Q4_0", BLOCK, 18, _q4_0),
    3: StoredType("Q4_1", BLOCK, 20, _q4_1),
}
