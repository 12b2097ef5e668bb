"""What it costs that a row's product does not depend on the rows beside it: our products beside oneDNN's.

    python tests/bench/compare_linear.py [--reps 5]

oneDNN, as vLLM uses it on a CPU, packs a weight once for each number of rows and promises no order of additions. Both
multiply all matrices of the built-in model's layers in bfloat16, and the head up to 64 rows, in turn, on two threads.
A ratio above 1 says that ours is faster. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from headstart_kernels import _native

NUM_LAYERS = 30
LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49_152, 576)
"""Rows and columns of the matrices: qkv, out, gate and up, down; and the head."""
HEAD_ROWS = 64
NUM_ROWS = (1, 4, 8, 16, 32, 64, 256, 1024)
NUM_THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    results = {}
    print("rows   ours ms   oneDNN ms   oneDNN / ours")
    for num_rows in NUM_ROWS:
        shapes = list(LAYER_SHAPES * NUM_LAYERS) + ([HEAD_SHAPE] if num_rows <= HEAD_ROWS else [])
        calls = [ours(shapes, num_rows), one_dnn(shapes, num_rows)]
        seconds = [[elapsed_s(call) for call in calls] for _ in range(options.reps + 1)][1:]
        ratio = statistics.median(theirs / own for own, theirs in seconds)
        own_ms, their_ms = (1e3 * statistics.median(column) for column in zip(*seconds, strict=True))
        results[str(num_rows)] = {"ours_ms": own_ms, "onednn_ms": their_ms, "ratio": ratio}
        print(f"{num_rows:>4} {own_ms:>9.2f} {their_ms:>11.2f} {ratio:>15.2f}", flush=True)
    print(json.dumps(results))


def elapsed_s(call: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def ours(shapes: list[tuple[int, int]], num_rows: int) -> Callable[[], None]:
    arena, pool, rng = _native.HugeArena(), _native.ThreadPool(NUM_THREADS), np.random.default_rng(0)
    values = {shape: rng.standard_normal(shape, np.float32).view(np.uint8) for shape in set(shapes)}
    weights = [_native.pack(arena, values[shape], "f32", "bf16") for shape in shapes]
    inputs = {k: rng.standard_normal((num_rows, k), np.float32).view(np.uint32) >> 16 for _, k in shapes}
    rounded = {k: value.astype(np.uint16) for k, value in inputs.items()}
    outputs = {n: np.empty((num_rows, n), np.float32) for n, _ in shapes}

    def multiply() -> None:
        for weight in weights:
            _native.gemm(pool, weight, rounded[weight.k], outputs[weight.n])

    return multiply


def one_dnn(shapes: list[tuple[int, int]], num_rows: int) -> Callable[[], None]:
    weights = [torch.ops.mkldnn._reorder_linear_weight(torch.randn(shape).bfloat16(), num_rows) for shape in shapes]
    inputs = [torch.randn(num_rows, k).bfloat16() for _, k in shapes]
    multiply_one = torch.ops.mkldnn._linear_pointwise

    def multiply() -> None:
        with torch.inference_mode():
            for weight, x in zip(weights, inputs, strict=True):
                multiply_one(x, weight, None, "none", [], "")

    return multiply


if __name__ == "__main__":
    main()
