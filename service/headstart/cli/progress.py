"""How far the model has been loaded: a bar on a terminal, a few lines elsewhere. Always on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a tenth of a second that a pod without a terminal does not pay at its start
    from rich.progress import Progress, TaskID


class LoadProgress:
    """Context manager; `show(stage, fraction)` may be called from one thread at a time, fraction in 0..1."""

    def __init__(self, *, is_json: bool = False) -> None:
        """`is_json` makes every line one of the log, which is JSON then, and no bar."""
        self._bar: Progress | None = _bar() if sys.stderr.isatty() and not is_json else None
        self._tell = teller(is_json=is_json)
        self._tasks: dict[str, TaskID | None] = {}

    def __enter__(self) -> LoadProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away. Idempotent."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, stage: str, fraction: float) -> None:
        """Plain output names each stage once, when it starts."""
        if stage not in self._tasks:
            self._tasks[stage] = None if self._bar is None else self._bar.add_task(stage, total=1.0)
            if self._bar is None:
                self._tell(stage)
        task = self._tasks[stage]
        if self._bar is not None and task is not None:
            self._bar.update(task, completed=fraction)


def teller(*, is_json: bool) -> Callable[[str], None]:
    """What says one line to whoever started the program."""
    return logging.getLogger("headstart").info if is_json else _print_line


def _print_line(text: str) -> None:
    print(f"headstart: {text}", file=sys.stderr, flush=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
