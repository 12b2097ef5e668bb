"""Discovery: a list is the truth, events are hints, and every doubt ends in a new list."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from headstart_operator.identity import PodRef
from headstart_operator.kube_client import KubeClient, KubeError, load_credentials
from headstart_operator.kube_pods import KubernetesPods, pod_ref
from kubernetes import client
from kubernetes.config.incluster_config import InClusterConfigLoader
from support.kube_server import KubeServer, pod

Sets = AsyncGenerator[frozenset[PodRef], None]


@contextlib.asynccontextmanager
async def following(server: KubeServer, *, silence_s: float = 30.0) -> AsyncIterator[Sets]:
    kube = KubeClient(lambda: load_credentials(server.url))
    source = KubernetesPods(kube, namespace="ns", selector="app=x", port=50051, silence_s=silence_s)
    async with contextlib.aclosing(source.follow()) as sets:
        yield sets
    await kube.close()


async def next_uids(sets: Sets) -> set[str]:
    return {ref.uid for ref in await asyncio.wait_for(anext(sets), 20)}


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
        assert [query["labelSelector"] for query in server.lists] == ["app=x"] * 3
        assert (server.watches[0]["resourceVersion"], server.watches[0]["allowWatchBookmarks"]) == ("100", "true")


async def test_events_that_come_late_or_twice_change_nothing() -> None:
    async with KubeServer() as server:
        server.pods = [pod("1", 10)]
        async with following(server) as sets:
            await next_uids(sets)
            server.say("MODIFIED", pod("1", 9, ready=False))
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
            assert {ref.uid for ref in await asyncio.wait_for(waiting, 20)} == {"2", "3"}


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
            assert {ref.uid for ref in await asyncio.wait_for(waiting, 20)} == {"2"}


def in_cluster(folder: Path, url: str) -> client.Configuration:
    """As in a pod, but for the scheme."""
    environ = {"KUBERNETES_SERVICE_HOST": "ignored", "KUBERNETES_SERVICE_PORT": "1"}
    found = client.Configuration()
    loader = InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"), environ=environ)
    loader.load_and_set(found)  # type: ignore[no-untyped-call]
    found.refresh_api_key_hook = None
    found.host = url
    return found


async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "token").write_text("first")
    async with KubeServer() as server:
        server.token = "first"
        kube = KubeClient(lambda: in_cluster(tmp_path, server.url))
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        server.token = "second"
        (tmp_path / "token").write_text("second")
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        server.token = "third"
        with pytest.raises(KubeError, match="401"):
            await kube.list_all("/api/v1/namespaces/ns/pods", {})
        await kube.close()


def test_pods_without_a_place_are_left_out_and_the_others_say_how_they_are() -> None:
    assert pod_ref(pod("1", 1, ip=""), 5) is None
    assert pod_ref(pod("1", 1, phase="Failed", reason="Evicted"), 5) is None
    ref = pod_ref(pod("1", 1, ip="fd00::1", ready=False, terminating=True), 5)
    assert ref is not None
    assert (ref.address, ref.is_ready, ref.is_terminating, ref.labels) == ("[fd00::1]:5", False, True, {"a": "b"})


def test_two_pods_may_have_one_address_one_after_the_other() -> None:
    old, new = pod_ref(pod("1", 1, terminating=True), 5), pod_ref(pod("2", 2), 5)
    assert old is not None
    assert new is not None
    assert (old.address, old.uid == new.uid) == (new.address, False)
