"""Programs that outlive the command that started them, and an end to each of them that is its own.

A program is known by its process id together with the time it started, so that nobody who got the id later is ended.
Owner of its state: the files under `run/`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster import place


def start(name: str, command: Sequence[str]) -> None:
    """In a session of its own: Ctrl-C reaches whoever waits for it, not the program."""
    log = place.STATE / "log" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        streams = [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[nothing, *streams], setsid=True)
    record = _record(name)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(f"{pid} {_started(pid)}")


def stop(name: str, *, kill: bool = False, patience_s: float = 10.0) -> None:
    """Asks it to end, then ends it. Harmless when it has ended."""
    record = _record(name)
    if not record.exists():
        return
    pid, _, started = record.read_text().partition(" ")
    for how in (signal.SIGKILL,) if kill else (signal.SIGTERM, signal.SIGKILL):
        if _is_running(int(pid), started):
            os.kill(int(pid), how)
            _until(lambda: not _is_running(int(pid), started), patience_s)
    record.unlink()


def end_those(belongs: Callable[[int], bool]) -> None:
    """Kills every process of which `belongs` says so, until there is none."""
    for _ in range(20):
        found = [int(path.name) for path in Path("/proc").glob("[0-9]*") if belongs(int(path.name))]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not found:
            return
        time.sleep(0.2)


def until(what: str, check: Callable[[], bool], *, patience_s: float) -> None:
    """Raises TimeoutError that says what did not come, and where to look."""
    if not _until(check, patience_s):
        raise TimeoutError(f"cluster: no {what} after {patience_s:.0f} s; see {place.STATE / 'log'}")


def succeeds(command: Sequence[str | Path]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _until(check: Callable[[], bool], patience_s: float) -> bool:
    ends = time.monotonic() + patience_s
    while not check():
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def _record(name: str) -> Path:
    return place.STATE / "run" / f"{name}.pid"


def _started(pid: int) -> str:
    """When, in ticks since the machine's start; "" for one that is gone or ended and not yet waited for."""
    try:
        state, *rest = (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def _is_running(pid: int, started: str) -> bool:
    return _started(pid) == started != ""
