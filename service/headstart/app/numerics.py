"""The name of a pod's arithmetic, equal on pods whose outputs are bit-identical, and whether it can be had.

Holds no state.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headstart_kernels.select import NATIVE

from headstart.errors import ConfigError

_FLAGS = ("avx512f", "avx2", "asimd")


def numerics_id(dtype: str, device: str, backend: str) -> str:
    """dtype, device, instruction set, backend and the version of what computes."""
    if backend == NATIVE:
        # Imported here: a machine may lack the compiled kernels and serve by another backend.
        from headstart_kernels._native import active_isa

        return f"{dtype}/{device}/{active_isa()}/{backend}/headstart-{_version('headstart')}"
    isa = _instruction_set() if device == "cpu" else "none"
    return f"{dtype}/{device}/{isa}/{backend}/torch-{_version('torch')}"


def check_native() -> None:
    """Raises ConfigError that names HEADSTART_ISA or HEADSTART_THREADS when the kernels cannot do what it says."""
    from headstart_kernels._native import ThreadPool, active_isa

    try:
        active_isa()
        ThreadPool()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except RuntimeError as error:  # the system refuses so many
        raise ConfigError(f"HEADSTART_THREADS: {error}") from None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The widest set that the machine says it has, else the name of its architecture."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        words = set()
    return next((flag for flag in _FLAGS if flag in words), platform.machine())
