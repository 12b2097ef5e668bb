"""Linear layers of the built-in model on the native kernels, next to what the machine can do: one JSON line.

For each number of rows, all 30 layers' weights are read once in order (they do not fit a cache), then the head.
`share` is the time that the hardware needs at least (reading at the bandwidth, multiplying at the peak) over the time
taken. The two limits are measured in the same run, before and after, because neighbours move them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from headstart_kernels import _native

LAYER_SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
HEAD_SHAPE = (49152, 576)
NUM_LAYERS = 30
HEAD_ROWS = 64
"""Above it a step computes no more logits than that."""


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
    rounds = 1_000_000
    operations = _native.multiply_registers(pool, rounds, isa)
    peak = operations / best_of(lambda: _native.multiply_registers(pool, rounds, isa), 5)
    return memory.nbytes / seconds, peak


class Layers:
    """The packed weights of one type, and inputs and outputs for any number of rows."""

    def __init__(self, pool: Any, weight_type: str, isa: str) -> None:
        self.pool, self.isa, self.weight_type = pool, isa, weight_type
        self.rng = np.random.default_rng(0)
        arena = _native.HugeArena()
        shapes = list(LAYER_SHAPES.values()) * NUM_LAYERS
        self.layers = [self._pack(arena, n, k) for n, k in shapes]
        self.head = self._pack(arena, *HEAD_SHAPE)

    def _pack(self, arena: Any, n: int, k: int) -> Any:
        if self.weight_type in ("f32", "bf16"):
            return _native.pack(arena, self.rng.standard_normal((n, k), np.float32), self.weight_type)
        block_bytes = {"q8_0": 34, "q4_1": 20}[self.weight_type]
        blocks = self.rng.integers(0, 60, (n, k // 32 * block_bytes), np.uint8)
        return _native.pack_blocks(arena, blocks, k, self.weight_type)

    def _input(self, rows: int, width: int) -> Any:
        values = self.rng.standard_normal((rows, width), np.float32)
        return values if self.weight_type == "f32" else (values.view(np.uint32) >> 16).astype(np.uint16)

    def measure(self, rows: int, repetitions: int) -> dict[str, tuple[float, list[Any]]]:
        """Best seconds and the weights of each part. The head follows the layers, so no cache still holds it."""
        inputs = {k: self._input(rows, k) for k in (576, 1536)}
        outputs = {n: np.empty((rows, n), np.float32) for n in {w.n for w in self.layers}}
        parts = {"layers": self.layers}
        if rows <= HEAD_ROWS:
            parts["head"] = [self.head]
            outputs[self.head.n] = np.empty((rows, self.head.n), np.float32)
        best = dict.fromkeys(parts, float("inf"))
        for _ in range(repetitions):
            for name, weights in parts.items():
                start = time.perf_counter()
                for weight in weights:
                    _native.gemm(self.pool, weight, inputs[weight.k], outputs[weight.n], isa=self.isa)
                best[name] = min(best[name], time.perf_counter() - start)
        return {name: (best[name], parts[name]) for name in parts}


def measure_rows(layers: Layers, rows: int, limits: tuple[float, float]) -> dict[str, Any]:
    result: dict[str, Any] = {"rows": rows}
    for name, (seconds, weights) in layers.measure(rows, 3 if rows > HEAD_ROWS else 9).items():
        num_bytes = sum(w.num_bytes for w in weights)
        operations = sum(2 * rows * w.n * w.k for w in weights)
        floor = max(num_bytes / limits[0], operations / limits[1])
        result[name] = {
            "ms": round(seconds * 1e3, 3),
            "gb_per_s": round(num_bytes / seconds / 1e9, 1),
            "gflop_per_s": round(operations / seconds / 1e9, 1),
            "share": round(floor / seconds, 3),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 256, 1024])
    parser.add_argument("--weights", nargs="+", default=["bf16"], choices=["f32", "bf16", "q8_0", "q4_1"])
    parser.add_argument("--isa", default="", help="an instruction set instead of the best one")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    pool = _native.ThreadPool(options.threads)
    before = measure_limits(pool, options.isa)
    # f32 weights are multiplied in float32: the dot product's peak is not theirs.
    has_dot = (options.isa or _native.active_isa()) == "avx512_bf16"
    float_limits = measure_limits(pool, "avx512") if has_dot else before
    results = {}
    for weight_type in options.weights:
        layers = Layers(pool, weight_type, options.isa)
        limits = float_limits if weight_type == "f32" else before
        results[weight_type] = [measure_rows(layers, rows, limits) for rows in options.rows]
    after = measure_limits(pool, options.isa)
    report = {
        "bench": "gemm",
        "isa": options.isa or _native.active_isa(),
        "threads": pool.size,
        "read_gb_per_s": [round(limit[0] / 1e9, 1) for limit in (before, after)],
        "peak_gflop_per_s": [round(limit[1] / 1e9, 1) for limit in (before, after)],
        "f32_peak_gflop_per_s": round(float_limits[1] / 1e9, 1),
        "weights": results,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
