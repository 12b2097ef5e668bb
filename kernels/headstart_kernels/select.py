"""Which backend computes the model on which device. Knows only names; the backends import their own libraries."""

from __future__ import annotations

import importlib.util

NATIVE = "native"
"""The C++ decoder of this package, on a CPU."""

REFERENCE = "reference"
"""PyTorch: exact and slow."""

AUTO = "auto"

_NEEDS = {
    NATIVE: (
        "headstart_kernels._native",
        "the compiled kernels are missing: install a C++ compiler and reinstall headstart without HEADSTART_NATIVE=0, "
        "or take the slow backend: pip install 'headstart[reference]' and choose 'reference'",
    ),
    REFERENCE: ("torch", "PyTorch is missing: pip install 'headstart[reference]'"),
}


def select_backend(requested: str, *, device: str) -> str:
    """The backend that `requested` ("auto" or a name) stands for on `device` ("cpu" or "cuda").

    Raises ValueError, which says what to do, for one that is unknown, does not run there or is not installed.
    """
    backend = requested
    if requested == AUTO:
        backend = NATIVE if device == "cpu" else REFERENCE
    if backend not in _NEEDS:
        raise ValueError(f"{requested!r} is not in this build: use {AUTO!r}, {NATIVE!r} or {REFERENCE!r}")
    if backend == NATIVE and device != "cpu":
        raise ValueError(f"{NATIVE!r} computes on a CPU, not on {device}: use {AUTO!r} or {REFERENCE!r}")
    module, advice = _NEEDS[backend]
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"{backend!r} is not installed: {advice}")
    return backend
