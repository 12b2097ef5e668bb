"""What the machine's processors did while something was measured, and how much memory a process took at most.

Reads /proc; standard library only, as `serve_workloads`. Owner of a meter: whoever measures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_CORES = 0.1
_LOOK_S = 0.5


class CpuMeter:
    """Cores that this process and `server_pids` used since the start, that all others used, and that were stolen.

    Children that ended count with their parents. Figures next to busy others are doubtful: above 0.1 discard them.
    """

    def __init__(self, server_pids: Sequence[int] = ()) -> None:
        self._pids = [os.getpid(), *server_pids]
        self.start()

    def start(self) -> None:
        self._at_s = time.perf_counter()
        self._own_s = self._own()
        self._busy_s, self._stolen_s = _machine()

    def read(self) -> dict[str, float]:
        """Mean numbers of cores since `start`."""
        seconds = max(time.perf_counter() - self._at_s, 1e-6)
        own_s = self._own() - self._own_s
        busy_s, stolen_s = _machine()
        return {
            "cpu_own": round(own_s / seconds, 2),
            "cpu_others": round(max(0.0, busy_s - self._busy_s - own_s) / seconds, 2),
            "cpu_steal": round((stolen_s - self._stolen_s) / seconds, 3),
        }

    def wait_until_quiet(self, timeout_s: float) -> None:
        """Return when the other processes are calm, or after the timeout."""
        end_s = time.perf_counter() + timeout_s
        while time.perf_counter() < end_s:
            self.start()
            time.sleep(_LOOK_S)
            if self.read()["cpu_others"] <= _QUIET_CORES:
                return

    def _own(self) -> float:
        return sum(_process_s(pid) for pid in self._pids)


def peak_rss_mb(pids: Sequence[int]) -> float:
    """Most memory that was resident, in MB of 2**20 bytes, summed over the processes that are alive."""
    total = 0
    for pid in pids:
        lines = _read(f"/proc/{pid}/status").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return round(total / 1024, 1)


def process_age_s() -> float:
    """Seconds since this process began, interpreter and imports included; exact to 10 ms."""
    started_s = int(_stat_fields(os.getpid())[19]) / _TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _process_s(pid: int) -> float:
    """Processor time of a process, its threads and its children that ended; 0 once it is gone."""
    fields = _stat_fields(pid)
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _stat_fields(pid: int) -> list[str]:
    """From the third field on: the second, the name, may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _machine() -> tuple[float, float]:
    """Seconds that all processors were busy, and that other machines took."""
    ticks = [int(field) for field in _read("/proc/stat").splitlines()[0].split()[1:]]
    return sum(ticks[place] for place in (0, 1, 2, 5, 6)) / _TICKS, ticks[7] / _TICKS


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
