"""How far the model has been loaded: a bar on a terminal, a few plain lines elsewhere. Always on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class LoadProgress:
    """Context manager; `show(stage, fraction)` may be called from one thread at a time, fraction in 0..1."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if console.is_terminal:
            columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)

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
        is_new = stage not in self._tasks
        if self._bar is None:
            self._tasks[stage] = TaskID(0)
            if is_new:
                self._console.print(f"headstart: {stage}", highlight=False, soft_wrap=True)
            return
        if is_new:
            self._tasks[stage] = self._bar.add_task(stage, total=1.0)
        self._bar.update(self._tasks[stage], completed=fraction)
