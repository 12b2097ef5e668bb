"""Whole steps of a model's native decoder: embedding to logits in one call, on its real weights.

The floor of a step reads every weight and every page of K/V once and does every product once; norms, softmax and the
like count as nothing. Owner of the decoder: `measure_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headstart.cli.bench.kernels_attention import PAGE_SIZE, Work, lay_out, num_keys
from headstart.cli.bench.kernels_limits import Figure, best_of
from headstart.model.config import ModelConfig
from headstart.model.kv import kv_bytes_per_block
from headstart.model.layout import EMBEDDING, LM_HEAD, tensor_shapes
from headstart.model.stored_blocks import weight_bytes
from headstart.model.weights import Checkpoint
from headstart.runner.native_runner import Cpu, NativeForward

STEPS = (
    Work("decode 1 on 256", 1, 256, 1),
    Work("decode 16 on 190", 16, 190, 1),
    Work("decode 32 on 1024 shared + 64", 32, 1088, 1, 1024),
    Work("prefill 1024", 1, 0, 1024),
    Work("prefill 32 x 64 on 1024 shared", 32, 1024, 64, 1024),
)


def measure_steps(
    checkpoint: Checkpoint, dtype: str, steps: tuple[Work, ...], *, cpu: Cpu, repetitions: int
) -> Iterator[Figure]:
    """One figure a step. `dtype` is one of the native runner's."""
    num_blocks = max(lay_out(step)[1] for step in steps)
    forward = NativeForward(checkpoint, num_blocks=num_blocks, block_size=PAGE_SIZE, dtype=dtype, cpu=cpu)
    for step in steps:
        yield _measure_step(forward, checkpoint, dtype, step, repetitions)


def _measure_step(forward: NativeForward, checkpoint: Checkpoint, dtype: str, step: Work, repetitions: int) -> Figure:
    metadata, num_pages = lay_out(step)
    token_ids = np.random.default_rng(0).integers(0, forward.vocab_size, metadata.num_tokens).astype(np.int32)
    last_rows = metadata.qo_indptr[1:] - 1
    config = checkpoint.config
    return Figure(
        name=f"decoder {dtype} {step.name}",
        seconds=best_of(lambda: forward.forward(token_ids, metadata, last_rows), repetitions),
        num_bytes=weight_bytes(checkpoint, dtype, _read_matrices(config))
        + num_pages * kv_bytes_per_block(config, PAGE_SIZE, dtype),
        num_ops=_num_ops(config, step),
        is_float32=dtype == "float32",
    )


def _num_ops(config: ModelConfig, step: Work) -> int:
    """Of the products and of attention; only the last token of a row has logits."""
    matrices = _read_matrices(config)
    head = EMBEDDING if config.tie_embeddings else LM_HEAD
    per_token = sum(2 * math.prod(shape) for name, shape in matrices.items() if name != head)
    attention = 4 * config.num_heads * config.head_dim * config.num_layers * num_keys(step)
    return per_token * step.rows * step.tokens + 2 * math.prod(matrices[head]) * step.rows + attention


def _read_matrices(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The matrices that a step reads: all but an embedding that is no head as well."""
    unread = set() if config.tie_embeddings else {EMBEDDING}
    return {name: shape for name, shape in tensor_shapes(config).items() if len(shape) == 2 and name not in unread}
