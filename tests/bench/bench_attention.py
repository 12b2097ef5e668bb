"""Attention of the built-in model's layers on the native kernels, next to what the machine can do: one JSON line.

Each of 30 layers has its own K/V, so that one layer's pages do not wait in the cache for the next. `share` is the time
that the hardware needs at least (reading each page once, multiplying at the peak) over the time taken. The two limits
are measured in the same run. `same_bits` says that grouped rows gave the bits of rows that read their own pages.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from headstart_kernels import _native
from headstart_kernels.metadata import AttentionMetadata, build_metadata

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS, PAGE_SIZE = 9, 3, 64, 30, 16


@dataclass(frozen=True)
class Work:
    """`rows` alike: `start` tokens in the cache, of which the first `shared` lie on common pages, and `tokens` new."""

    name: str
    rows: int
    start: int
    tokens: int
    shared: int = 0
    shares_prefixes: bool = True


WORKS = [
    Work("decode 1 x 300", 1, 299, 1),
    Work("decode 16 x 200", 16, 199, 1),
    Work("decode 32 x (1024 shared + 80)", 32, 1103, 1, 1024),
    Work("decode 32 x (1024 shared + 80), not grouped", 32, 1103, 1, 1024, shares_prefixes=False),
    Work("prefill 512 on 1024", 1, 1024, 512),
]


def best_of(run: Callable[[], Any], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_limits(pool: Any, isa: str) -> tuple[float, float]:
    """Read bandwidth in bytes/s over 512 MB and operations/s in registers, both on all threads."""
    memory = np.ones(512 << 20, np.uint8)
    seconds = best_of(lambda: _native.read_memory(pool, memory, isa), 5)
    operations = _native.multiply_registers(pool, 1_000_000, isa)
    peak = operations / best_of(lambda: _native.multiply_registers(pool, 1_000_000, isa), 5)
    return memory.nbytes / seconds, peak


def lay_out(work: Work) -> tuple[AttentionMetadata, int]:
    """The step's page table, and how many pages there are: shared ones first, then row after row."""
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


def random_bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def make_plan(work: Work, metadata: AttentionMetadata, num_threads: int) -> Any:
    return _native.plan_attention(
        metadata.qo_indptr,
        metadata.kv_indptr,
        metadata.kv_indices,
        metadata.seq_lens,
        PAGE_SIZE,
        NUM_HEADS,
        NUM_KV_HEADS,
        num_threads,
        work.shares_prefixes,
    )


def measure(work: Work, pool: Any, isa: str, limits: tuple[float, float]) -> tuple[dict[str, Any], Any]:
    """The figures of one piece of work, and its output."""
    rng = np.random.default_rng(0)
    metadata, num_pages = lay_out(work)
    # One array, as the engine has one: large enough for huge pages.
    layers = list(random_bf16(rng, (NUM_LAYERS, num_pages, 2, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM)))
    q = rng.standard_normal((metadata.num_tokens, NUM_HEADS * HEAD_DIM), np.float32)
    out = np.empty_like(q)
    plan_s = best_of(lambda: make_plan(work, metadata, pool.size), 9)
    plan = make_plan(work, metadata, pool.size)

    def run_layers() -> None:
        for kv in layers:
            _native.attention(pool, plan, q, kv, out, HEAD_DIM**-0.5, isa)

    seconds = best_of(run_layers, 9) / NUM_LAYERS
    keys = sum(range(work.start + 1, work.start + work.tokens + 1)) * work.rows
    operations = 4 * NUM_HEADS * HEAD_DIM * keys
    floor = max(layers[0].nbytes / limits[0], operations / limits[1])
    figures = {
        "name": work.name,
        "us_per_layer": round(seconds * 1e6, 1),
        "gflop_per_s": round(operations / seconds / 1e9, 1),
        "share": round(floor / seconds, 3),
        "limit": "read" if layers[0].nbytes / limits[0] > operations / limits[1] else "multiply",
        "plan_us": round(plan_s * 1e6, 1),
    }
    return figures, out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default="", help="an instruction set instead of the best one")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    pool = _native.ThreadPool(options.threads)
    limits = measure_limits(pool, options.isa)
    results = {work.name: measure(work, pool, options.isa, limits) for work in WORKS}
    grouped, alone = (results[work.name][1] for work in WORKS if work.shared)
    report = {
        "bench": "attention",
        "isa": options.isa or _native.active_isa(),
        "threads": pool.size,
        "read_gb_per_s": round(limits[0] / 1e9, 1),
        "peak_gflop_per_s": round(limits[1] / 1e9, 1),
        "works": [figures for figures, _ in results.values()],
        "same_bits": bool(np.array_equal(grouped, alone)),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
