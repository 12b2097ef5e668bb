"""Reads a GGUF file through the `gguf` package and gives its tensors the names and the layout of Hugging Face.

Two conventions of llama.cpp are undone: its tensor names, and, for the architecture "llama" only, the order of the rows
of the q and k projections, which its converter interleaves so that the rotation acts on neighbours.
Owns the map of the file. Reading the header takes seconds, so a file is opened once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError
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
            reader = gguf.GGUFReader(str(path))
            self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        except (ValueError, IndexError, KeyError, OSError) as error:
            raise ModelError(f"{path.name} is no readable GGUF file: {error}") from error
        self._tensors = {_hugging_face_name(tensor.name): tensor for tensor in reader.tensors}
        arch = self.metadata.get("general.architecture")
        self._interleaved = {
            "self_attn.q_proj": int(self.metadata.get(f"{arch}.attention.head_count", 0)),
            "self_attn.k_proj": int(self.metadata.get(f"{arch}.attention.head_count_kv", 0)),
        }
        if arch != "llama":
            self._interleaved = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor. GGUF counts dimensions from the innermost."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def dtype(self, name: str) -> str:
        """The stored type, in the words of the format ("Q4_1")."""
        return str(self._tensors[name].tensor_type.name)

    def head_bytes(self, name: str, num_bytes: int) -> bytes:
        """The first bytes of the tensor as they are stored."""
        raw: bytes = self._tensors[name].data.reshape(-1).view(np.uint8)[:num_bytes].tobytes()
        return raw

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor in float32, unpacked and with its rows in Hugging Face's order."""
        stored = self._tensors[name]
        try:
            # A copy in any case: what is stored as float32 would be a read-only view of the file.
            values = np.array(gguf.dequantize(stored.data, stored.tensor_type), np.float32)
        except NotImplementedError as error:
            raise ModelError(f"tensor {name} is stored as {self.dtype(name)}, which cannot be unpacked") from error
        num_heads = self._interleaved.get(name.removeprefix("model.layers.").partition(".")[2].rpartition(".")[0])
        return values if num_heads is None else _rows_by_half(values, num_heads)


def _rows_by_half(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows (head, pair, side of the pair), as llama.cpp wants them, to (head, side, pair)."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _hugging_face_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES and kind == "weight":
        return _NAMES[stem]
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and part in _LAYER_NAMES:
        return f"{layer_prefix(int(layer))}{_LAYER_NAMES[part]}.{kind}"
    return name
