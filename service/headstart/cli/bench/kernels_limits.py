"""What this machine can do at most, measured by the kernels' own loops, and a kernel's time next to it.

`share` is the time that the hardware needs at least - moving each byte once at the read bandwidth, or doing each
operation at the peak, whichever is longer - over the time taken. Holds no state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from headstart_kernels import _native

_READ_BYTES = 512 << 20
_ROUNDS = 1_000_000
_REPETITIONS = 5


class Limits(NamedTuple):
    """`float_ops_per_s` is the peak of float32 products, `ops_per_s` that of products on bf16 weights."""

    read_bytes_per_s: float
    ops_per_s: float
    float_ops_per_s: float


class Figure(NamedTuple):
    """One kernel on one size of work: the best time, and what it has to read and to compute at least."""

    name: str
    seconds: float
    num_bytes: int
    num_ops: int
    is_float32: bool = False


class Machine(NamedTuple):
    """Where the kernels run: their threads and their instruction set."""

    pool: _native.ThreadPool
    isa: str


def best_of(run: Callable[[], object], repetitions: int) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - start_s)
    return min(times)


def measure_limits(machine: Machine, num_bytes: int = _READ_BYTES) -> Limits:
    """Reading memory that fits no cache, and multiplying in registers, on all threads."""
    memory = np.ones(num_bytes, np.uint8)
    read_s = best_of(lambda: _native.read_memory(machine.pool, memory, machine.isa), _REPETITIONS)
    has_dot = machine.isa == "avx512_bf16"
    ops_per_s = _peak(machine.pool, machine.isa)
    return Limits(
        read_bytes_per_s=memory.nbytes / read_s,
        ops_per_s=ops_per_s,
        # Float32 products have no dot instruction: its peak is not theirs.
        float_ops_per_s=_peak(machine.pool, "avx512") if has_dot else ops_per_s,
    )


def better(one: Limits, other: Limits) -> Limits:
    """Neighbours on the machine move both limits within minutes: the better of two is nearer to the truth."""
    return Limits(*(max(pair) for pair in zip(one, other, strict=True)))


def share(figure: Figure, limits: Limits) -> float:
    return floor_s(figure, limits) / figure.seconds


def floor_s(figure: Figure, limits: Limits) -> float:
    """Seconds that the work takes at least."""
    return max(figure.num_bytes / limits.read_bytes_per_s, figure.num_ops / _peak_for(figure, limits))


def is_bound_by_reading(figure: Figure, limits: Limits) -> bool:
    return figure.num_bytes / limits.read_bytes_per_s >= figure.num_ops / _peak_for(figure, limits)


def _peak_for(figure: Figure, limits: Limits) -> float:
    return limits.float_ops_per_s if figure.is_float32 else limits.ops_per_s


def _peak(pool: _native.ThreadPool, isa: str) -> float:
    num_ops = _native.multiply_registers(pool, _ROUNDS, isa)
    return num_ops / best_of(lambda: _native.multiply_registers(pool, _ROUNDS, isa), _REPETITIONS)
