"""EnginePools and the pods of all of them: what is followed, what follows a change, and what is refused in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.pool import Pools
from headstart_operator.decision.score import Policy
from headstart_operator.kube import pools
from headstart_operator.kube.client import KubeClient, load_credentials
from headstart_operator.kube.pools import KubernetesPools, parse_pool
from support.kube_server import PODS, POOLS, KubeServer, engine_pool, pod

Sets = AsyncGenerator[frozenset[PodRef], None]


@contextlib.asynccontextmanager
async def following(
    server: KubeServer, *, selector: str = "", lasting: str = ""
) -> AsyncIterator[tuple[KubernetesPools, Sets]]:
    kube = KubeClient(lambda: load_credentials(server.url))
    pools = KubernetesPools(kube, namespace="ns", selector=selector, lasting=lasting)
    try:
        async with contextlib.aclosing(pools.follow()) as sets:
            yield pools, sets
    finally:
        await kube.close()


async def reach(sets: Sets, condition: Callable[[dict[str, PodRef]], bool]) -> dict[str, PodRef]:
    """Read sets until one is as wanted; by uid."""
    async with asyncio.timeout(20):
        async for refs in sets:
            by_uid = {ref.uid: ref for ref in refs}
            if condition(by_uid):
                return by_uid
    raise AssertionError("the sets have ended")


def _server(**pods: str) -> KubeServer:
    """With pods by uid, and the pool that each belongs to."""
    server = KubeServer()
    server.pods = [pod(uid, labels={"app": name}) for uid, name in pods.items()]
    return server


async def test_the_first_set_has_the_pods_of_every_pool() -> None:
    async with _server(a="chat", b="code", c="other") as server:
        server.put(POOLS, engine_pool("chat", port=1))
        server.put(POOLS, engine_pool("code", port=2, model="m"))
        async with following(server) as (_, sets):
            refs = await anext(sets)
    assert {(ref.uid, ref.pool, ref.address, ref.model) for ref in refs} == {
        ("a", "chat", "10.0.0.1:1", ""),
        ("b", "code", "10.0.0.1:2", "m"),
    }


async def test_without_pools_the_set_is_empty_and_grows_with_the_first_pool() -> None:
    async with _server(a="chat") as server, following(server) as (_, sets):
        assert await anext(sets) == frozenset()
        server.put(POOLS, engine_pool("chat"))
        await reach(sets, lambda refs: refs.keys() == {"a"})


async def test_pools_and_pods_that_go_take_their_references_with_them() -> None:
    async with _server(a="chat", b="code", c="code") as server:
        for name in ("chat", "code"):
            server.put(POOLS, engine_pool(name))
        async with following(server) as (pools, sets):
            await reach(sets, lambda refs: len(refs) == 3)
            server.remove(PODS, "pod-c")
            await reach(sets, lambda refs: refs.keys() == {"a", "b"})
            server.remove(POOLS, "chat")
            await reach(sets, lambda refs: refs.keys() == {"b"})
            assert pools.pools.keys() == {"code"}


async def test_another_selector_or_port_takes_effect_and_another_policy_disturbs_nobody() -> None:
    async with _server(a="chat", b="new") as server:
        item = server.put(POOLS, engine_pool("chat"))
        async with following(server) as (pools, sets):
            known = Pools(by_name=pools.pools)
            await reach(sets, lambda refs: refs.keys() == {"a"})
            await server.until(num_watches=2)
            server.put(POOLS, item | engine_pool("chat", routing={"policy": "round-robin"}))
            await reach(sets, lambda _: known.policy_of("chat") is Policy.ROUND_ROBIN)
            server.put(PODS, pod("c", labels={"app": "chat"}))
            await reach(sets, lambda refs: refs.keys() == {"a", "c"})
            assert len(server.lists) == 2
            server.remove(PODS, "pod-c")
            server.put(POOLS, engine_pool("chat", port=7))
            await reach(sets, lambda refs: [ref.address for ref in refs.values()] == ["10.0.0.1:7"])
            server.put(POOLS, engine_pool("chat", selector={"matchLabels": {"app": "new"}}))
            await reach(sets, lambda refs: refs.keys() == {"b"})


async def test_a_status_that_is_written_starts_nothing_anew() -> None:
    async with _server(a="chat") as server:
        server.put(POOLS, engine_pool("chat"))
        async with following(server) as (pools, sets):
            await anext(sets)
            await server.until(num_watches=2)
            server.put(POOLS, engine_pool("chat") | {"status": {"cachedBlocks": 1}})
            await reach(sets, lambda _: "status" in pools.objects["chat"])
            server.put(PODS, pod("b", labels={"app": "chat"}))
            await reach(sets, lambda refs: refs.keys() == {"a", "b"})
            assert (len(server.watches), len(server.lists)) == (2, 2)


async def test_a_pod_of_two_pools_belongs_to_the_first_by_name() -> None:
    async with _server(a="chat") as server:
        for name in ("b-pool", "a-pool"):
            server.put(POOLS, engine_pool(name, selector={"matchLabels": {"app": "chat"}}))
        async with following(server) as (_, sets):
            refs = await reach(sets, lambda refs: refs.keys() == {"a"})
            assert refs["a"].pool == "a-pool"


async def test_a_pool_that_cannot_be_read_is_kept_with_the_reason_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _server(a="chat", b="code") as server:
        server.put(POOLS, engine_pool("chat"))
        server.put(POOLS, engine_pool("code", selector={}))
        async with following(server) as (pools, sets):
            await reach(sets, lambda refs: refs.keys() == {"a"})
            assert pools.problems.keys() == {"code"}
            assert "spec.selector" in pools.problems["code"]
            server.put(POOLS, engine_pool("chat") | {"status": {"cachedBlocks": 1}})
            await reach(sets, lambda _: "status" in pools.objects["chat"])
            assert caplog.text.count("is not followed") == 1
            server.put(POOLS, engine_pool("code"))
            await reach(sets, lambda refs: refs.keys() == {"a", "b"})
            assert pools.problems == {}


async def test_one_pool_whose_pods_cannot_be_listed_holds_up_the_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "PATIENCE_S", 0.2)
    async with _server(a="chat") as server:
        server.put(POOLS, engine_pool("chat"))
        server.refuse("GET", "/pods", 500, times=3)
        async with following(server) as (_, sets):
            assert await anext(sets) == frozenset()
            await reach(sets, lambda refs: refs.keys() == {"a"})


@pytest.mark.parametrize("doubt", [410, 0])
async def test_after_an_expired_or_ended_watch_the_pools_are_listed_anew(doubt: int) -> None:
    async with _server(a="chat", b="code") as server:
        server.put(POOLS, engine_pool("chat"))
        async with following(server) as (_, sets):
            await reach(sets, lambda refs: refs.keys() == {"a"})
            server.is_mute = True
            server.remove(POOLS, "chat")
            server.put(POOLS, engine_pool("code"))
            if doubt:
                server.say("ERROR", {"kind": "Status", "code": doubt, "reason": "Expired"}, collection=POOLS)
            else:
                server.hang_up(collection=POOLS)
            await reach(sets, lambda refs: refs.keys() == {"b"})


async def test_only_pools_that_the_selector_finds_are_followed() -> None:
    async with _server(a="chat", b="code") as server:
        for name in ("chat", "code"):
            item = engine_pool(name)
            item["metadata"]["labels"] = {"release": name}
            server.put(POOLS, item)
        async with following(server, selector="release=code") as (_, sets):
            await reach(sets, lambda refs: refs.keys() == {"b"})
        assert server.verbs() == {("list", "enginepools"), ("list", "pods")}


async def test_the_pool_that_comes_back_keeps_its_pods_and_follows_them_while_it_is_gone() -> None:
    async with _server(a="chat", b="code") as server:
        for name in ("chat", "code"):
            server.put(POOLS, engine_pool(name))
        async with following(server, lasting="chat") as (pools, sets):
            await reach(sets, lambda refs: refs.keys() == {"a", "b"})
            for name in ("chat", "code"):
                server.remove(POOLS, name)
            await reach(sets, lambda refs: refs.keys() == {"a"})
            assert (pools.objects, pools.pools.keys()) == ({}, {"chat"})
            server.put(PODS, pod("c", labels={"app": "chat"}))
            await reach(sets, lambda refs: refs.keys() == {"a", "c"})
            num_lists = len(server.lists)
            server.put(POOLS, engine_pool("chat"))
            await reach(sets, lambda _: pools.objects.keys() == {"chat"})
            assert len(server.lists) == num_lists
            server.put(POOLS, engine_pool("chat", port=7))
            await reach(sets, lambda refs: {ref.address for ref in refs.values()} == {"10.0.0.1:7"})


async def test_the_pool_that_comes_back_is_not_followed_while_it_cannot_be_read() -> None:
    async with _server(a="chat") as server:
        server.put(POOLS, engine_pool("chat"))
        async with following(server, lasting="chat") as (_, sets):
            await reach(sets, lambda refs: refs.keys() == {"a"})
            server.put(POOLS, engine_pool("chat", port=0))
            await reach(sets, lambda refs: not refs)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"selector": {"matchLabels": {"a": "b,c=d"}}}, "spec.selector"),
        ({"port": 0}, "spec.port"),
        ({"port": True}, "spec.port"),
        ({"port": "50051"}, "spec.port"),
        ({"model": 7}, "spec.model"),
        ({"routing": {"policy": "random"}}, "spec.routing.policy"),
        ({"limits": {"maxQueuedTokens": -1}}, "spec.limits.maxQueuedTokens"),
    ],
)
def test_a_spec_that_the_schema_would_refuse_is_refused_by_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: "):
        parse_pool(engine_pool("chat", **spec))


def test_what_is_not_said_has_its_default() -> None:
    pool = parse_pool(engine_pool("chat", limits={"maxQueuedRequests": 3}))
    assert (pool.port, pool.model, pool.policy) == (50051, "", Policy.PREFIX)
    assert pool.limits is not None
    assert pool.limits.max_requests == 3
    assert min(pool.limits.max_tokens, pool.limits.max_requests_per_tenant) > 1 << 60
    assert parse_pool(engine_pool("chat")).limits is None
