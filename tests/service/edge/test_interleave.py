"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from headstart.edge.interleave import interleave


class Source:
    """A stream that says what it is told to, and notes that it was ended."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.is_ended = False

    async def items(self) -> AsyncGenerator[str, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_ended = True


async def test_items_come_in_the_order_in_which_they_are_said() -> None:
    first, second = Source(), Source()
    async with aclosing(interleave([first.items(), second.items()])) as merged:
        second.queue.put_nowait("a")
        assert await anext(merged) == (1, "a")
        first.queue.put_nowait("b")
        assert await anext(merged) == (0, "b")
        first.queue.put_nowait(None)
        second.queue.put_nowait("c")
        assert await anext(merged) == (1, "c")
        second.queue.put_nowait(None)
        assert [item async for item in merged] == []


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_an_error_of_one_is_raised_and_no_stream_is_read_any_more(num_streams: int) -> None:
    sources = [Source() for _ in range(num_streams)]
    streams = [source.items() for source in sources]
    sources[0].queue.put_nowait(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        async for _ in interleave(streams):
            pass
    for stream in streams:
        await stream.aclose()  # would raise if somebody were still reading it
    assert all(source.is_ended for source in sources)


async def test_no_streams_are_no_items() -> None:
    assert [item async for item in interleave([])] == []
