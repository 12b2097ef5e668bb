"""Reads what stands before the tensors in a GGUF file: the key-value part and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). The file is not to
be trusted: every length is checked against its end. Holds no state.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError

Content = npt.NDArray[np.uint8]
"""The whole file, mapped."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
# An entry of the key-value part or a tensor's takes at least this much, so a larger count is a lie.
_MIN_ENTRY_BYTES = 12

_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


class StoredTensor(NamedTuple):
    """Where a tensor lies. `shape` counts from the outermost dimension, `type_id` is GGML's number of the type."""

    shape: tuple[int, ...]
    type_id: int
    start: int
    """Of its first byte in the file."""


class GgufHeader(NamedTuple):
    metadata: dict[str, Any]
    """Plain values: numbers, bool, str, and lists of these."""
    tensors: dict[str, StoredTensor]
    """By the file's own names."""


def read_header(content: Content) -> GgufHeader:
    """Raises ModelError that says where the file stops making sense."""
    reader = _Reader(content.data)
    if reader.take(4) != _MAGIC:
        raise ModelError("it does not begin with GGUF")
    version = reader.number("<I")
    if version not in _VERSIONS:
        raise ModelError(f"version {version} is not served, only little-endian {_VERSIONS[0]} and {_VERSIONS[1]}")
    num_tensors, num_values = reader.count(_MIN_ENTRY_BYTES), reader.count(_MIN_ENTRY_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        metadata[key] = reader.value(reader.number("<I"))
    infos = dict(_tensor_info(reader) for _ in range(num_tensors))
    if len(infos) != num_tensors:
        raise ModelError("two of its tensors have one name")
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"general.alignment must be a positive number, is {alignment!r}")
    begin = -(-reader.position // alignment) * alignment
    return GgufHeader(metadata, {name: info._replace(start=begin + info.start) for name, info in infos.items()})


def _tensor_info(reader: _Reader) -> tuple[str, StoredTensor]:
    """A tensor whose `start` still counts from the end of the header."""
    name = reader.string()
    num_dimensions = reader.number("<I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ModelError(f"tensor {name} has {num_dimensions} dimensions")
    shape = tuple(int(reader.number("<Q")) for _ in range(num_dimensions))
    return name, StoredTensor(shape[::-1], int(reader.number("<I")), int(reader.number("<Q")))


class _Reader:
    """A position in the file that only moves forwards. Raises ModelError at the end of it."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self._content):
            raise ModelError("it is cut short")
        taken = self._content[self.position : end].tobytes()
        self.position = end
        return taken

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def count(self, item_bytes: int) -> int:
        """A number of items of at least that size, all of which the file can still hold."""
        count = self.number("<Q")
        if count * item_bytes > len(self._content) - self.position:
            raise ModelError("it is cut short")
        return count

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.number("<I"))
        return self._numbers(kind, 1)[0]

    def _array(self, kind: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(self.count(8))
        return self._numbers(kind, self.count(1))

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise ModelError(f"a value of type {kind} is not served")
        dtype = np.dtype(_NUMBERS[kind])
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values

    def _strings(self, count: int) -> list[str]:
        """As `string`, without a call for each: a vocabulary has a hundred thousand."""
        content, position = self._content, self.position
        length_at: Callable[[memoryview, int], tuple[int]] = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_at(content, position)[0]
                strings.append(str(content[start:position], "utf-8", "replace"))
        except (struct.error, OverflowError) as error:  # beyond the file, or beyond any file
            raise ModelError("it is cut short") from error
        if position > len(content):
            raise ModelError("it is cut short")
        self.position = position
        return strings


def check_extent(name: str, tensor: StoredTensor, num_bytes: int, content: Content) -> None:
    """Raise ModelError unless the file holds all `num_bytes` of the tensor."""
    if tensor.start + num_bytes > content.size:
        raise ModelError(
            f"tensor {name} of {math.prod(tensor.shape)} values lies beyond the end of the file: cut short"
        )
