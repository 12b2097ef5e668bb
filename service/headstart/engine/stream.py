"""One request's way out of the engine: chunks for one reader, merged while the reader lags.

Lives on the event loop. It knows nothing of the engine; the handle feeds it and gets told when the reader walks away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headstart.core.step import Chunk, Finish, RequestStats, TokenLogprobs
from headstart.errors import HeadstartError


class RequestStream:
    """Async iterator of chunks. The last one carries `finish`; nothing follows it.

    Whatever arrives between two reads comes out as one chunk with everything in order, so a slow reader costs one
    buffer. Raises, after what was buffered, the error that the engine ended with, if it did. `aclose` before
    the end cancels the request; `wait_end` then says when the engine has ended it.
    """

    def __init__(self, request_id: str, cancel: Callable[[str], None]) -> None:
        self.request_id = request_id
        self.num_tokens = 0
        """Tokens that the engine has sent, read or not."""
        self.finish: Finish | None = None
        """How the engine ended the request, read or not; None before, and when it broke off."""
        self.stats: RequestStats | None = None
        self._cancel = cancel
        self._end = asyncio.Event()
        self._wake = asyncio.Event()
        self._error: HeadstartError | None = None
        self._is_done = False
        self._clear()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_done:
            raise StopAsyncIteration
        await self._wake.wait()
        self._wake.clear()
        if self._has_chunk:
            return self._take()
        self._is_done = True
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration  # closed while it was being read

    async def aclose(self) -> None:
        """Stop reading. Cancels the request unless its last chunk was read. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self._clear()
            self._cancel(self.request_id)
            self._wake.set()

    async def wait_end(self) -> None:
        """Return when nothing more can come from the engine: within a step of `aclose`."""
        await self._end.wait()

    def push(self, chunk: Chunk) -> None:
        """Append to what the reader has not taken yet. When it has left, only what happened is noted."""
        self.num_tokens += len(chunk.token_ids)
        self.finish, self.stats = chunk.finish, chunk.stats
        if chunk.finish is not None:
            self._end.set()
        if self._is_done:
            return
        self._has_chunk = True
        self._text.append(chunk.text)
        self._token_ids.extend(chunk.token_ids)
        self._logprobs.extend(chunk.logprobs)
        self._prompt_logprobs.extend(chunk.prompt_logprobs)
        self._matched_stop_string = chunk.matched_stop_string
        self._wake.set()

    def fail(self, error: HeadstartError) -> None:
        """The engine cannot go on: raise this once the buffer is read."""
        self._error = error
        self._end.set()
        self._wake.set()

    def _take(self) -> Chunk:
        chunk = Chunk(
            self.request_id,
            "".join(self._text),
            self._token_ids,
            self._logprobs,
            self._prompt_logprobs,
            finish=self.finish,
            matched_stop_string=self._matched_stop_string,
            stats=self.stats,
        )
        self._is_done = chunk.finish is not None
        self._clear()
        if self._error is not None:
            self._wake.set()
        return chunk

    def _clear(self) -> None:
        self._has_chunk = False
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._matched_stop_string = ""
