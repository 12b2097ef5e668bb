"""`headstart` programs as children of this process: started on free ports, ended with it whatever happens.

Knows nothing of what the programs do. Owner of the children: `Programs`, for as long as its context is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from headstart.errors import ConfigError

_KEPT_LINES = 20
# Settings of the user's own pods must not reach the demo's; what chooses the kernels may.
_KEPT_VARIABLES = ("HEADSTART_ISA", "HEADSTART_NATIVE")
_LOCAL = ("--host", "127.0.0.1", "--port", "0", "--health-port", "0", "--http-port", "0", "--metrics-port", "0")
_PORTS = re.compile(r"gRPC on port (\d+).*HTTP on (\d+)")


@dataclass(slots=True, kw_only=True)
class Program:
    """One child. The ports are known once it is ready; `lines` are the last that it wrote on stderr."""

    name: str
    process: asyncio.subprocess.Process
    grpc_port: int = 0
    http_port: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it listens, and when it ends before."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def wait_ready(self) -> None:
        """Raises ConfigError with its last words when it ended instead."""
        await self.ready.wait()
        if not self.grpc_port:
            raise ConfigError(f"{self.name} did not come up:\n" + "\n".join(self.lines))


class Programs:
    """Async context manager: whatever was started in it is gone after it."""

    def __init__(self) -> None:
        self._followed: dict[str, tuple[Program, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Programs:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for program, _ in list(self._followed.values()):
            await self.stop(program)

    async def start(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> Program:
        """`headstart ARGUMENTS` on free loopback ports; it is not ready yet. `name` is what errors call it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headstart.cli.tethered", *arguments, *_LOCAL, "--log-level", "warning"),
            env=_environment() | (environment or {}),
            stdin=asyncio.subprocess.PIPE,  # held open: the child ends when it closes
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then ends its children
        )
        program = Program(name=name, process=process)
        self._followed[name] = program, asyncio.create_task(_follow(program))
        return program

    async def stop(self, program: Program) -> None:
        """End it at once: it serves nobody but us."""
        _, following = self._followed.pop(program.name)
        with contextlib.suppress(ProcessLookupError):
            program.process.kill()
        await program.process.wait()
        await following
        if program.process.stdin is not None:
            program.process.stdin.close()


async def _follow(program: Program) -> None:
    """Read what it says to the end: a full pipe would stop it."""
    assert program.process.stderr is not None
    async for line in program.process.stderr:
        program.lines.append(line.decode(errors="replace").rstrip())
        found = _PORTS.search(" ".join(program.lines))  # a pipe has 80 columns, so the words may be on two lines
        if found and not program.ready.is_set():
            program.grpc_port, program.http_port = int(found.group(1)), int(found.group(2))
            program.ready.set()
    program.ready.set()


def _environment() -> dict[str, str]:
    return {
        key: value for key, value in os.environ.items() if key in _KEPT_VARIABLES or not key.startswith("HEADSTART_")
    }
