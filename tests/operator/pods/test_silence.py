"""Silence is what is not said while the loop listens: time that the loop was away is none."""

from __future__ import annotations

import asyncio
import time

from headstart_operator.pods.silence import SilenceTimer


async def test_who_says_nothing_is_silent_once() -> None:
    said = asyncio.Queue[None]()
    timer = SilenceTimer(0.1, lambda: said.put_nowait(None))
    await asyncio.wait_for(said.get(), 10)
    assert timer.is_silent
    assert said.empty()


async def test_what_came_while_the_loop_was_away_is_read_before_anybody_is_taken_for_silent() -> None:
    server_end: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: server_end.set_result(writer), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    speaker = await server_end
    silent = asyncio.Event()
    timer = SilenceTimer(0.2, silent.set)
    speaker.write(b"x")
    time.sleep(1.0)  # as the whole process may be
    await reader.readexactly(1)
    timer.heard()
    assert not silent.is_set()
    timer.stop()
    for each in (speaker, writer):
        each.close()
    server.close()


async def test_an_overdue_timer_alone_proves_no_silence() -> None:
    silent = asyncio.Event()
    timer = SilenceTimer(0.2, silent.set)
    for _ in range(2):
        time.sleep(0.5)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not silent.is_set()
    await asyncio.wait_for(silent.wait(), 10)
    timer.stop()
