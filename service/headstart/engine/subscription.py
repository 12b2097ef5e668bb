"""A listener's end of the engine's publications: it is woken, and then reads what it likes from the handle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

_MAX_ACCEPTED = 10_000
"""Beyond it the oldest ids are dropped: whoever waits for them gives up after 30 s anyway."""


class Subscription:
    """Wake-ups that come while nobody waits are merged into one. Owned by one task of the event loop."""

    def __init__(self, on_close: Callable[[Subscription], None]) -> None:
        self._on_close = on_close
        self._event = asyncio.Event()
        self._accepted: deque[str] = deque(maxlen=_MAX_ACCEPTED)

    async def changed(self) -> None:
        """Return when something was published, the engine ended, or the drain began since the last call."""
        await self._event.wait()
        self._event.clear()

    def take_accepted(self) -> list[str]:
        """Request ids taken in since this was last called, however many publications ago."""
        accepted = list(self._accepted)
        self._accepted.clear()
        return accepted

    def wake(self, accepted: Sequence[str]) -> None:
        self._accepted.extend(accepted)
        self._event.set()

    def close(self) -> None:
        """Stop listening; a pending `changed` returns. Idempotent."""
        self._on_close(self)
        self._event.set()
