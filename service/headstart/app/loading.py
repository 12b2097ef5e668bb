"""Reads the model on a thread of its own, so that a pod can import and open its servers meanwhile.

Only that thread imports what reading needs. Owner of the thread; whoever waits owns the model.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it is a part of what the thread does
    from headstart.app.model import ServedModel

from headstart.config import Settings

Progress = Callable[[str, float], None]

THREAD_NAME = "load"


class ModelLoading:
    """Starts at once. The thread is a daemon: the process can end while it reads weights."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._model: Future[ServedModel] = Future()
        self._model.set_running_or_notify_cancel()  # whoever stops waiting leaves it to its end
        threading.Thread(target=self._load, name=THREAD_NAME, daemon=True).start()

    async def model(self) -> ServedModel:
        """The model when it is read. Raises ModelError or ConfigError."""
        return await asyncio.wrap_future(self._model)

    def _load(self) -> None:
        try:
            from headstart.app.model import open_model

            self._model.set_result(open_model(self._settings, self._progress))
        except BaseException as error:
            self._model.set_exception(error)
