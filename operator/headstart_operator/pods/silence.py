"""Whether a stream has gone silent, heard by an event loop that may itself have been away.

A process that was stopped, or given no time, wakes to timers that are overdue while what was said to it meanwhile still
waits in its sockets. So silence is never judged by a timer that came late, nor before one more look. Knows nothing of
streams. Owner of its state: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_SLACK = 1 / 8
"""Of the silence: how late a timer may be, and how long the last look waits."""


class SilenceTimer:
    """Runs `on_silence` once after about `silence_s` in which `heard` was not called. `stop` it when nobody listens."""

    def __init__(self, silence_s: float, on_silence: Callable[[], None]) -> None:
        self._silence_s = silence_s
        self._slack_s = silence_s * _SLACK
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._is_last_look = False
        self.is_silent = False
        self._arm(silence_s)

    def heard(self) -> None:
        """Somebody spoke just now."""
        self._heard_s = self._loop.time()
        self._is_last_look = False

    def stop(self) -> None:
        self._timer.cancel()

    def _arm(self, delay_s: float) -> None:
        self._due_s = self._loop.time() + delay_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self._due_s > self._slack_s:
            self.heard()
        rest_s = self._heard_s + self._silence_s - now_s
        if rest_s > 0:
            self._arm(rest_s)
        elif not self._is_last_look:
            self._is_last_look = True
            self._arm(self._slack_s)
        else:
            self.is_silent = True
            self._on_silence()
