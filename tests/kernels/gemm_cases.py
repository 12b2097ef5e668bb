"""Inputs and float64 answers for linear layers: bf16 as uint16, rounded to nearest even in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]


def to_bf16(values: Floats) -> Halves:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves: Halves) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def random_floats(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


def exact_product(x: Any, w: Any, bias: Any = None) -> npt.NDArray[np.float64]:
    """x [m, k] times w [n, k] transposed, in float64."""
    product = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    return product if bias is None else product + bias


def error_bound(x: Any, w: Any) -> npt.NDArray[np.float64]:
    """How far a float32 chain over k may be from the exact product: k roundings of the largest partial sum."""
    magnitudes = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(w, np.float64)).T
    return magnitudes * (x.shape[1] + 2) * 2.0**-23 + 1e-30
