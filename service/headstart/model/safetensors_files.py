"""Reads the tensors of a directory of safetensors files as numpy, bfloat16 included, which numpy has no word for.

The format: 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, then the data
(https://huggingface.co/docs/safetensors). Files are mapped, so a tensor costs memory only once it is asked for.
Knows nothing of models. Owns the maps of the files.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError

INDEX = "model.safetensors.index.json"

_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

_MAX_HEADER_BYTES = 100_000_000


class _Entry(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    raw: npt.NDArray[np.uint8]
    """The tensor's bytes in the mapped file."""


class SafetensorsFiles:
    """All tensors of a directory, by name. Raises ModelError for a broken file and for pickled weights."""

    def __init__(self, directory: Path) -> None:
        self._entries: dict[str, _Entry] = {}
        for path in _files(directory):
            for name, entry in _read_file(path).items():
                if name in self._entries:
                    raise ModelError(f"tensor {name} is in more than one safetensors file")
                self._entries[name] = entry

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def dtype(self, name: str) -> str:
        """The stored type, in the words of the format ("BF16")."""
        return self._entries[name].dtype

    def head_bytes(self, name: str, num_bytes: int) -> bytes:
        """The first bytes of the tensor as they are stored."""
        return self._entries[name].raw[:num_bytes].tobytes()

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """As stored: [rows, bytes of a row], one row for a vector. To be read only."""
        shape, _, raw = self._entry(name)
        return raw.reshape(shape[0] if len(shape) > 1 else 1, -1)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor in float32; exact for all stored types."""
        shape, dtype, raw = self._entry(name)
        values = raw.view(_DTYPES[dtype]).reshape(shape)
        if dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise ModelError(f"tensor {name} is stored as {entry.dtype}: use float32, float16 or bfloat16 weights")
        return entry


def _files(directory: Path) -> list[Path]:
    """The files that the index names, else all of them."""
    index = directory / INDEX
    if index.is_file():
        names = sorted(set(_json_object(index.read_bytes(), index.name).get("weight_map", {}).values()))
        # A name is a file here, never a path to somewhere else.
        missing = [name for name in names if Path(name).name != name or not (directory / name).is_file()]
        if missing:
            raise ModelError(f"{INDEX} names {missing[0]}, which the model directory does not hold")
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files and any(directory.glob("*.bin")):
        raise ModelError("the model has only pickled weights (.bin), which can run code: convert it to safetensors")
    if not files:
        raise ModelError("the model has no *.safetensors file")
    return files


def _read_file(path: Path) -> dict[str, _Entry]:
    if path.stat().st_size < 8:
        raise ModelError(f"{path.name} is no safetensors file: it is too short")
    content = np.memmap(path, np.uint8, mode="r")
    header_bytes = int(content[:8].view("<u8")[0])
    if header_bytes > min(_MAX_HEADER_BYTES, content.size - 8):
        raise ModelError(f"{path.name} is no safetensors file, or it is cut short")
    header = _json_object(content[8 : 8 + header_bytes].tobytes(), path.name)
    values = content[8 + header_bytes :]
    return {name: _entry(name, field, values) for name, field in header.items() if name != "__metadata__"}


def _entry(name: str, field: Any, values: npt.NDArray[np.uint8]) -> _Entry:
    try:
        shape, dtype = tuple(int(size) for size in field["shape"]), str(field["dtype"])
        start, end = (int(offset) for offset in field["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"tensor {name} has no valid entry in its safetensors header") from error
    if not 0 <= start <= end <= values.size:
        raise ModelError(f"tensor {name} lies beyond the end of its safetensors file: the file is cut short")
    if dtype in _DTYPES and end - start != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ModelError(f"tensor {name} has {end - start} bytes, which is not {dtype} of shape {shape}")
    return _Entry(shape, dtype, values[start:end])


def _json_object(content: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise ModelError(f"{name} holds no valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{name} must hold a JSON object")
    return parsed
