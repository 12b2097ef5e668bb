"""Reads a GGUF file and gives its tensors the names and the layout of Hugging Face.

Two conventions of llama.cpp are undone: its tensor names, and, for the architecture "llama" only, the order of the rows
of the q and k projections, which its converter interleaves so that the rotation acts on neighbours.
Owns the map of the file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError
from headstart.model.gguf_header import StoredTensor, check_extent, read_header
from headstart.model.gguf_types import StoredType, stored_type
from headstart.model.layout import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3's rope scaling, one divisor per frequency. It has no counterpart in Hugging Face and keeps its name."""

_NAMES = {"token_embd": EMBEDDING, "output_norm": FINAL_NORM, "output": LM_HEAD}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """The tensors by name and the key-value part (`metadata`). Raises ModelError for a file that cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._content = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
            header = read_header(self._content)
        except (ModelError, ValueError, OSError) as error:
            raise ModelError(f"{path.name} is no readable GGUF file: {error}") from error
        self.metadata: dict[str, Any] = header.metadata
        self._tensors = {_hugging_face_name(name): tensor for name, tensor in header.tensors.items()}
        arch = self.metadata.get("general.architecture")
        self._interleaved = {
            "self_attn.q_proj": int(self.metadata.get(f"{arch}.attention.head_count", 0)),
            "self_attn.k_proj": int(self.metadata.get(f"{arch}.attention.head_count_kv", 0)),
        }
        if arch != "llama":
            self._interleaved = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def dtype(self, name: str) -> str:
        """The stored type, in the words of the format ("Q4_1")."""
        return stored_type(self._tensors[name].type_id, name).name

    def head_bytes(self, name: str, num_bytes: int) -> bytes:
        """The first bytes of the tensor as they are stored."""
        return self._raw(name, self._tensors[name])[1].reshape(-1)[:num_bytes].tobytes()

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor in float32, unpacked and with its rows in Hugging Face's order."""
        stored = self._tensors[name]
        kind, raw = self._raw(name, stored)
        values = kind.unpack(raw).reshape(stored.shape)
        return self._in_order(name, values)

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """As stored, but in Hugging Face's order: [rows, bytes of a row], one row for a vector. To be read only."""
        stored = self._tensors[name]
        num_rows = stored.shape[0] if len(stored.shape) > 1 else 1
        return self._in_order(name, self._raw(name, stored)[1].reshape(num_rows, -1))

    def _in_order(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        num_heads = self._interleaved.get(name.removeprefix("model.layers.").partition(".")[2].rpartition(".")[0])
        return values if num_heads is None else _rows_by_half(values, num_heads)

    def _raw(self, name: str, stored: StoredTensor) -> tuple[StoredType, npt.NDArray[np.uint8]]:
        """The tensor's type and its blocks as they lie in the file, [blocks, block_bytes]."""
        kind = stored_type(stored.type_id, name)
        if stored.shape and stored.shape[-1] % kind.block_size:
            raise ModelError(f"tensor {name} has rows of {stored.shape[-1]}, which {kind.name} cannot store")
        num_bytes = math.prod(stored.shape) // kind.block_size * kind.block_bytes
        check_extent(name, stored, num_bytes, self._content)
        return kind, self._content[stored.start : stored.start + num_bytes].reshape(-1, kind.block_bytes)


def _rows_by_half(values: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows (head, pair, side of the pair), as llama.cpp wants them, to (head, side, pair)."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _hugging_face_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES and kind == "weight":
        return _NAMES[stem]
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and layer.isdecimal() and part in _LAYER_NAMES:
        return f"{layer_prefix(int(layer))}{_LAYER_NAMES[part]}.{kind}"
    return name
