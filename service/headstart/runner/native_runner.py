"""The forward pass of a real model on a CPU without torch, as `ModelRunner` wants it: one native call a step.

Knows the model's tensors by name; what is done with them is the native decoder's. Owns that decoder, and with it the
weights and the K/V storage; only `forward` writes to either. Called from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from headstart_kernels._native import Decoder
from headstart_kernels.metadata import AttentionMetadata, IntArray

from headstart.errors import ModelError
from headstart.model.config import ModelConfig
from headstart.model.kv import DTYPE_BYTES
from headstart.model.layout import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from headstart.model.rope import rope_table
from headstart.model.stored_blocks import BYTES_PER_WEIGHT
from headstart.model.weights import Checkpoint, Progress, no_progress

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
)
"""What the decoder calls as the config does."""

_NUM_READERS = 2
"""Threads that fetch tensors from the file while the decoder packs the one before."""


class Cpu(NamedTuple):
    """What to use of the machine."""

    num_threads: int = 0
    """0: all usable cores, or what HEADSTART_THREADS says."""
    isa: str = ""
    """Empty: the best instruction set, or what HEADSTART_ISA says."""


WHOLE_MACHINE = Cpu()


class _Part(NamedTuple):
    """What the decoder calls `name` in `layer` (0 for the whole model's): `sources`, one below the other."""

    name: str
    layer: int
    sources: tuple[str, ...]


class NativeForward:
    """`num_blocks` counts usable blocks; the storage has one page more, page 0, which stays zero.

    `dtype` is "float32" or "bfloat16", for weights and K/V alike, or "quantized": as bfloat16, but matrices that the
    file stores as Q8_0, Q4_0 or Q4_1 stay so, and their inputs become 16-bit integers. The residual stream, norms,
    softmax and logits are float32 in all of them.
    Raises ModelError for another dtype, ValueError for an instruction set that is not there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        dtype: str = "bfloat16",
        cpu: Cpu = WHOLE_MACHINE,
        progress: Progress = no_progress,
    ) -> None:
        if dtype not in DTYPE_BYTES:
            raise ModelError(f"dtype {dtype!r} is not served: use one of {', '.join(DTYPE_BYTES)}")
        config = checkpoint.config
        self.vocab_size = config.vocab_size
        self.block_size = block_size
        max_positions = min(config.context_length, num_blocks * block_size)
        cos, sin = rope_table(config, max_positions)
        self._decoder = Decoder(
            sizes={name: getattr(config, name) for name in _SIZES}
            | {"num_pages": num_blocks + 1, "page_size": block_size},
            rms_norm_eps=config.rms_norm_eps,
            is_bf16=dtype != "float32",
            cos=cos,
            sin=sin,
            num_threads=cpu.num_threads,
            isa=cpu.isa,
        )
        self._num_layers = config.num_layers
        _load_weights(self._decoder, _Source(checkpoint, keeps_blocks=dtype == "quantized"), progress)

    @property
    def kv_layers(self) -> list[npt.NDArray[Any]]:
        """The storage of each layer, [panels of 16 slots, kv_heads, 2, 16, head_dim]: float32, or bfloat16 as uint16.

        How a panel's numbers lie is KvLayer's in csrc/attention.h.
        """
        return [self._decoder.kv_layer(layer) for layer in range(self._num_layers)]

    def forward(
        self, token_ids: IntArray, metadata: AttentionMetadata, logit_rows: IntArray
    ) -> npt.NDArray[np.float32]:
        """Write K/V of `token_ids` [tokens] and return the logits [n, vocab] of the tokens `logit_rows` [n].

        Raises ValueError that names the argument when the batch does not fit together.
        """
        if metadata.page_size != self.block_size:
            raise ValueError(f"page_size: must be {self.block_size}, is {metadata.page_size}")
        logits = np.empty((logit_rows.size, self.vocab_size), np.float32)
        self._decoder.step(
            token_ids=token_ids,
            positions=metadata.positions,
            slots=metadata.slots,
            qo_indptr=metadata.qo_indptr,
            kv_indptr=metadata.kv_indptr,
            kv_indices=metadata.kv_indices,
            seq_lens=metadata.seq_lens,
            logit_rows=logit_rows,
            logits=logits,
        )
        return logits


class _Rows(NamedTuple):
    """A part as it is stored, uint8 [rows, bytes of a row]. `is_kept`: the decoder computes with it as it is."""

    part: _Part
    rows: npt.NDArray[np.uint8]
    stored_type: str
    is_kept: bool


class _Source:
    """Reads parts from a checkpoint. With `keeps_blocks`, those that are stored in blocks throughout stay so."""

    def __init__(self, checkpoint: Checkpoint, *, keeps_blocks: bool) -> None:
        self._checkpoint = checkpoint
        self._kept_types = BYTES_PER_WEIGHT if keeps_blocks else {}
        self.num_tensors = len(checkpoint.tensor_names)

    def read_ahead(self, readers: Executor) -> Iterator[_Rows]:
        """All parts in order; while one is in use, the readers fetch the next few."""
        waiting: deque[Future[_Rows]] = deque()
        for part in _parts(self._checkpoint.config):
            waiting.append(readers.submit(self._read, part))
            if len(waiting) > _NUM_READERS:
                yield waiting.popleft().result()
        for rows in waiting:
            yield rows.result()

    def _read(self, part: _Part) -> _Rows:
        types = {self._checkpoint.stored_type(name) for name in part.sources}
        if len(types) == 1:
            (stored_type,) = types
            arrays = [self._checkpoint.rows(name) for name in part.sources]
        else:
            stored_type, arrays = "F32", [_as_rows(self._checkpoint.tensor(name)) for name in part.sources]
        is_vector = part.name.endswith(("norm", "bias"))
        rows = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1 if is_vector else 0)
        return _Rows(part, rows, stored_type, not is_vector and stored_type in self._kept_types)


def _as_rows(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(np.atleast_2d(values)).view(np.uint8)


def _load_weights(decoder: Decoder, source: _Source, progress: Progress) -> None:
    """Give the decoder every tensor, part after part, so that no second copy of the model is ever held."""
    done = 0
    with ThreadPoolExecutor(_NUM_READERS, "read-weights") as readers:
        for part, rows, stored_type, is_kept in source.read_ahead(readers):
            load = decoder.load_blocks if is_kept else decoder.load
            load(part.name, part.layer, rows, stored_type.lower())
            done += len(part.sources)
            progress("load weights", done / source.num_tensors)
    decoder.check_complete()


def _parts(config: ModelConfig) -> Iterator[_Part]:
    yield _Part("embedding", 0, (EMBEDDING,))
    for layer in range(config.num_layers):
        yield from _layer_parts(config, layer)
    yield _Part("final_norm", 0, (FINAL_NORM,))
    if not config.tie_embeddings:
        yield _Part("lm_head", 0, (LM_HEAD,))


def _layer_parts(config: ModelConfig, layer: int) -> Iterator[_Part]:
    def part(name: str, *sources: str) -> _Part:
        return _Part(name, layer, tuple(layer_prefix(layer) + source for source in sources))

    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    yield part("input_norm", "input_layernorm.weight")
    yield part("qkv", *(f"{name}.weight" for name in qkv))
    if config.qkv_bias:
        yield part("qkv_bias", *(f"{name}.bias" for name in qkv))
    if config.qk_norm:
        yield part("q_norm", "self_attn.q_norm.weight")
        yield part("k_norm", "self_attn.k_norm.weight")
    yield part("out", "self_attn.o_proj.weight")
    if config.out_bias:
        yield part("out_bias", "self_attn.o_proj.bias")
    yield part("post_norm", "post_attention_layernorm.weight")
    yield part("gate_up", "mlp.gate_proj.weight", "mlp.up_proj.weight")
    yield part("down", "mlp.down_proj.weight")
