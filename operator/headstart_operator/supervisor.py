"""Keeps work going that must never end: whatever ends it is logged, and it is begun anew after a pause.

Knows nothing of the work. Holds no state but what belongs to one call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 10.0

_LOGGER = logging.getLogger(__name__)


async def keep_running(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Until it is cancelled. `what` is the work's name in the log: no fault of ours stops it for good or in silence."""
    pause_s = _FIRST_PAUSE_S
    clock = asyncio.get_running_loop().time
    while True:
        started_s = clock()
        try:
            await work()
            _LOGGER.error("%s has ended; it is begun anew", what)
        except asyncio.CancelledError:
            # Also what a call says that was cancelled elsewhere, as by the connection under it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            _LOGGER.warning("%s was broken off; it is begun anew", what)
        except Exception:
            _LOGGER.exception("%s has failed; it is begun anew", what)
        if clock() - started_s > _MAX_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
