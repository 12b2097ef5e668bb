"""A list is the truth, events are hints, and every doubt ends in a new list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import pytest
from headstart_operator.kube.client import KubeClient, load_credentials
from headstart_operator.kube.informer import Informer
from support.kube_server import PODS, KubeServer, pod

Sets = AsyncGenerator[Mapping[str, str], None]


@contextlib.asynccontextmanager
async def following(server: KubeServer, *, silence_s: float = 30.0) -> AsyncIterator[Sets]:
    """Pods, read as their names; one that is called like nothing is left out."""
    kube = KubeClient(lambda: load_credentials(server.url))
    informer = Informer(
        kube,
        PODS,
        selector="app=x",
        read=lambda item: None if item["status"].get("reason") == "Evicted" else str(item["metadata"]["name"]),
        silence_s=silence_s,
    )
    try:
        async with contextlib.aclosing(informer.follow()) as sets:
            yield sets
    finally:
        await kube.close()


async def next_uids(sets: Sets) -> set[str]:
    return set(await asyncio.wait_for(anext(sets), 20))


async def test_the_list_comes_first_in_pages_and_events_change_it() -> None:
    async with KubeServer() as server:
        server.page_size = 2
        server.pods = [pod(str(number), number) for number in range(1, 6)]
        async with following(server) as sets:
            assert await next_uids(sets) == {"1", "2", "3", "4", "5"}
            server.say("ADDED", pod("6", 101))
            assert await next_uids(sets) == {"1", "2", "3", "4", "5", "6"}
            server.say("DELETED", pod("1", 102))
            assert await next_uids(sets) == {"2", "3", "4", "5", "6"}
            server.say("MODIFIED", pod("2", 103, reason="Evicted"))
            assert await next_uids(sets) == {"3", "4", "5", "6"}
        assert [query["labelSelector"] for query in server.lists] == ["app=x"] * 3
        assert (server.watches[0]["resourceVersion"], server.watches[0]["allowWatchBookmarks"]) == ("100", "true")


async def test_events_that_come_late_or_twice_change_nothing() -> None:
    async with KubeServer() as server:
        server.pods = [pod("1", 10)]
        async with following(server) as sets:
            await next_uids(sets)
            server.say("MODIFIED", pod("1", 9, reason="Evicted"))
            server.say("DELETED", pod("1", 12))
            server.say("MODIFIED", pod("1", 11))
            server.say("BOOKMARK", {"metadata": {"resourceVersion": "13"}})
            server.say("ADDED", pod("2", 14))
            assert await next_uids(sets) == set()
            assert await next_uids(sets) == {"2"}


@pytest.mark.parametrize("doubt", ["410", "end", "silence"])
async def test_when_in_doubt_the_list_is_read_anew_and_what_is_gone_goes(doubt: str) -> None:
    async with KubeServer() as server:
        server.pods = [pod("1", 1), pod("2", 2)]
        async with following(server, silence_s=0.2 if doubt == "silence" else 30.0) as sets:
            assert await next_uids(sets) == {"1", "2"}
            waiting = asyncio.create_task(anext(sets))
            await server.until(num_watches=1)
            server.pods = [pod("2", 2), pod("3", 3)]
            if doubt == "410":
                server.say("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
            elif doubt == "end":
                server.hang_up()
            assert set(await asyncio.wait_for(waiting, 20)) == {"2", "3"}


async def test_while_the_api_is_away_the_last_set_stands() -> None:
    async with KubeServer() as server:
        server.pods = [pod("1", 1)]
        async with following(server) as sets:
            assert await next_uids(sets) == {"1"}
            waiting = asyncio.create_task(anext(sets))
            await server.until(num_watches=1)
            server.token = "nobody has it"
            server.hang_up()
            await asyncio.sleep(0.5)
            assert not waiting.done()
            server.token, server.pods = "", [pod("2", 2)]
            assert set(await asyncio.wait_for(waiting, 20)) == {"2"}


async def test_a_collection_that_is_missing_is_asked_for_every_second_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Waits are seconds long only in name: each is noted, and over at once."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        waits.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("headstart_operator.kube.informer.asyncio.sleep", note)
    caplog.set_level(logging.WARNING, "headstart_operator")
    async with KubeServer() as server:
        server.pods = [pod("1", 1)]
        server.refuse("GET", "/pods", 404, times=8)
        async with following(server) as sets:
            assert await next_uids(sets) == {"1"}
    found = [each for each in waits if each]
    assert (len(found), max(found) <= 1.0, found[-1] >= 0.5) == (8, True, True)
    assert caplog.text.count("the watch of pods ended (404") == 1
