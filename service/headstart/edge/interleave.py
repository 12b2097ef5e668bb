"""Several streams as one, in the order in which they speak. Holds no state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

_ItemT = TypeVar("_ItemT")


async def interleave(streams: Sequence[AsyncIterator[_ItemT]]) -> AsyncGenerator[tuple[int, _ItemT], None]:
    """Each item with its stream's index. Raises what a stream raises; the others are then left where they are.

    No stream is being read any more when this has ended or was closed; closing them is the caller's.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    pending = {asyncio.ensure_future(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = pending.pop(future)
                for item in future.result():
                    yield index, item
                    pending[asyncio.ensure_future(_next(streams[index]))] = index
    finally:
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _next(stream: AsyncIterator[_ItemT]) -> list[_ItemT]:
    """The next item, or none at the end: a future cannot hold StopAsyncIteration's meaning."""
    async for item in stream:
        return [item]
    return []
