"""How a comparison talks to an engine's process: a line `WORKLOAD SEED` goes in, a line `ROW {json}` comes out.

Both ends are here. Standard library only: an engine's process runs in that engine's own environment. An engine stays
loaded between its rows, so that several can be measured in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

_MARK = "ROW "


def serve_rows(measure: Callable[[str, str], Row], first: Row) -> None:
    """The engine's end: tell `first` once, then a row for each line on stdin until it closes."""
    tell(first)
    for line in sys.stdin:
        workload, seed = line.split()
        tell(measure(workload, seed))


def tell(row: Row) -> None:
    print(_MARK + json.dumps(row), flush=True)


class Worker:
    """The comparison's end: one engine's process. What the process says besides goes to stderr when it fails."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._said: list[str] = []
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
        )
        self.first = self._next_row()

    def measure(self, workload: str, seed: str) -> Row:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{workload} {seed}\n")
        self._process.stdin.flush()
        return self._next_row()

    def close(self) -> None:
        """End the process: at once, since it is idle."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _next_row(self) -> Row:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                self._said.clear()
                return dict(json.loads(line.removeprefix(_MARK)))
            self._said.append(line)
        self.close()
        raise RuntimeError(f"{' '.join(self._command)} ended:\n{''.join(self._said[-30:])}")
