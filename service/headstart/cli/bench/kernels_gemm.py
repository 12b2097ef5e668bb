"""Linear layers of the built-in model's shapes on packed weights of random values.

For each number of rows all 30 layers' weights are read once in order - they fit no cache - and then the head, which no
cache still holds. Owner of the weights: `Layers`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from headstart_kernels import _native

from headstart.cli.bench.kernels_limits import Figure, Machine

WEIGHT_TYPES = ("f32", "bf16", "q8_0", "q4_1")

_LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""[outputs, inputs] of qkv, o, gate and up, down."""
_HEAD_SHAPE = (49_152, 576)
_NUM_LAYERS = 30
_HEAD_ROWS = 64
"""A step computes the logits of no more rows than that."""
_BLOCK_BYTES = {"q8_0": 34, "q4_1": 20}
_BLOCK = 32


class Layers:
    """The packed weights of one type, and what multiplies them."""

    def __init__(self, weight_type: str, num_layers: int = _NUM_LAYERS) -> None:
        self.weight_type = weight_type
        self._rng = np.random.default_rng(0)
        arena = _native.HugeArena()
        self._layers = [self._pack(arena, n, k) for n, k in _LAYER_SHAPES * num_layers]
        self._head = self._pack(arena, *_HEAD_SHAPE)

    def measure(self, machine: Machine, rows: int, repetitions: int) -> Iterator[Figure]:
        """The layers together, and the head where a step can have so many rows of it."""
        parts = {"layers": self._layers} | ({"head": [self._head]} if rows <= _HEAD_ROWS else {})
        inputs = {k: self._input(rows, k) for k in {weight.k for weight in self._layers}}
        outputs = {weight.n: np.empty((rows, weight.n), np.float32) for weights in parts.values() for weight in weights}
        best_s = dict.fromkeys(parts, float("inf"))
        for _ in range(repetitions):
            for part, weights in parts.items():
                start_s = time.perf_counter()
                for weight in weights:
                    _native.gemm(machine.pool, weight, inputs[weight.k], outputs[weight.n], isa=machine.isa)
                best_s[part] = min(best_s[part], time.perf_counter() - start_s)
        for part, weights in parts.items():
            yield Figure(
                name=f"gemm {self.weight_type} {part} x{rows}",
                seconds=best_s[part],
                num_bytes=sum(weight.num_bytes for weight in weights),
                num_ops=sum(2 * rows * weight.n * weight.k for weight in weights),
                is_float32=self.weight_type == "f32",
            )

    def _pack(self, arena: _native.HugeArena, n: int, k: int) -> _native.PackedWeight:
        if self.weight_type not in _BLOCK_BYTES:
            values = self._rng.standard_normal((n, k), np.float32)
            return _native.pack(arena, values.view(np.uint8), "f32", self.weight_type)
        width = k // _BLOCK * _BLOCK_BYTES[self.weight_type]
        blocks = self._rng.integers(0, 60, (n, width), np.uint8)
        return _native.pack_blocks(arena, blocks, self.weight_type)

    def _input(self, rows: int, width: int) -> npt.NDArray[Any]:
        values = self._rng.standard_normal((rows, width), np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16) if self.weight_type == "bf16" else values
