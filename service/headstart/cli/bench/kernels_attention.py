"""Paged attention of the built-in model's heads over random K/V.

Each of 30 layers has K/V of its own, so that one layer's pages do not wait in the cache for the next. Work that shares
a prefix is measured once with it read for all rows together and once row by row. Holds no state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from headstart_kernels import _native
from headstart_kernels.metadata import AttentionMetadata, build_metadata

from headstart.cli.bench.kernels_limits import Figure, Machine, best_of

_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM = 9, 3, 64
_NUM_LAYERS = 30
PAGE_SIZE = 16


class Work(NamedTuple):
    """`rows` alike: `start` tokens in the cache, of which the first `shared` lie on common pages, and `tokens` new."""

    name: str
    rows: int
    start: int
    tokens: int
    shared: int = 0
    shares_prefixes: bool = True


WORKS = (
    Work("decode 1 on 299", 1, 299, 1),
    Work("decode 16 on 199", 16, 199, 1),
    Work("decode 32 on 1024 shared + 79", 32, 1103, 1, 1024),
    Work("decode 32 on 1024 shared + 79, one by one", 32, 1103, 1, 1024, shares_prefixes=False),
    Work("prefill 512 on 1024", 1, 1024, 512),
)


def lay_out(work: Work) -> tuple[AttentionMetadata, int]:
    """The step's page table, and how many pages there are: an empty one, shared ones, then row after row."""
    num_shared = work.shared // PAGE_SIZE
    num_own = -(-(work.start + work.tokens) // PAGE_SIZE) - num_shared
    own = 1 + num_shared + np.arange(work.rows * num_own).reshape(work.rows, num_own)
    shared = np.broadcast_to(1 + np.arange(num_shared), (work.rows, num_shared))
    metadata = build_metadata(
        starts=[work.start] * work.rows,
        num_tokens=[work.tokens] * work.rows,
        block_tables=np.hstack([shared, own]).astype(np.int32),
        table_rows=range(work.rows),
        read_only=[False] * work.rows,
        page_size=PAGE_SIZE,
    )
    return metadata, 1 + num_shared + work.rows * num_own


def num_keys(work: Work) -> int:
    """Keys that the queries of all rows look at, together."""
    return sum(range(work.start + 1, work.start + work.tokens + 1)) * work.rows


def measure_attention(
    machine: Machine, work: Work, *, repetitions: int, num_layers: int = _NUM_LAYERS
) -> tuple[Figure, npt.NDArray[np.float32]]:
    """The figure of one layer, and its output [tokens, heads * dim]: the same whoever reads the shared pages."""
    rng = np.random.default_rng(0)
    metadata, num_pages = lay_out(work)
    # One array, as the engine has one: large enough for huge pages.
    layers = list(_random_bf16(rng, (num_layers, num_pages, _NUM_KV_HEADS, 2, PAGE_SIZE, _HEAD_DIM)))
    q = rng.standard_normal((metadata.num_tokens, _NUM_HEADS * _HEAD_DIM), np.float32)
    out = np.empty_like(q)
    plan = _plan(work, metadata, machine.pool.size)

    def run_layers() -> None:
        for kv in layers:
            _native.attention(machine.pool, plan, q, kv, out, _HEAD_DIM**-0.5, machine.isa)

    figure = Figure(
        name=f"attention {work.name}",
        seconds=best_of(run_layers, repetitions) / num_layers,
        num_bytes=layers[0].nbytes,
        num_ops=4 * _NUM_HEADS * _HEAD_DIM * num_keys(work),
    )
    return figure, out


def _plan(work: Work, metadata: AttentionMetadata, num_threads: int) -> _native.AttentionPlan:
    return _native.plan_attention(
        metadata.qo_indptr,
        metadata.kv_indptr,
        metadata.kv_indices,
        metadata.seq_lens,
        PAGE_SIZE,
        _NUM_HEADS,
        _NUM_KV_HEADS,
        num_threads,
        work.shares_prefixes,
    )


def _random_bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """From the beginning of a cache line on, as the engine's storage is."""
    size = math.prod(shape)
    flat = np.empty(size + 32, np.uint16)
    start = -flat.ctypes.data % 64 // 2
    numbers = flat[start : start + size].reshape(shape)
    numbers[:] = rng.standard_normal(shape, np.float32).view(np.uint32) >> 16
    return numbers
