"""What one of the operators writes into the cluster: statuses when they differ, events when something happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from headstart.app.pod import Pod
from headstart.contract.events import Stored
from headstart_operator.kube import keeper
from headstart_operator.kube.client import KubeClient, KubeError, load_credentials
from headstart_operator.kube.default import DefaultPool
from headstart_operator.kube.events import EventRecorder
from headstart_operator.kube.keeper import FIGURES_INTERVAL_S, INTERVAL_S, PoolKeeper
from headstart_operator.kube.lease import RENEW_DEADLINE_S, Lease
from headstart_operator.kube.pools import KubernetesPools
from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.survey import survey_pool
from operator_rig import start_simulated_pod, until
from support.doors import write_keys
from support.kube_server import EVENTS, PODS, POOLS, KubeServer, engine_pool, pod


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


class Rig:
    """An API, an operator's fleet and the one that writes; the Lease's clock is the keeper's."""

    def __init__(self, server: KubeServer, *, default: DefaultPool | None = None) -> None:
        self.server = server
        self.clock = Clock()
        self.kube = KubeClient(lambda: load_credentials(server.url))
        self.pools = KubernetesPools(self.kube, namespace="ns")
        self.lease = Lease(self.kube, namespace="ns", name="l", identity="me", clock=self.clock)
        self.fleet = Fleet(self.pools)
        self.keeper = PoolKeeper(
            self.kube,
            self.lease,
            self.pools,
            EventRecorder(self.kube, namespace="ns", instance="me", clock=self.clock),
            default=default,
            clock=self.clock,
        )

    async def look(self, *, after_s: float = INTERVAL_S) -> None:
        """Look again later, having renewed."""
        self.clock.now_s += after_s
        await self.lease.attempt()
        await self.keeper.look(self.fleet)

    def status(self, name: str = "chat") -> Any:
        item = self.server.find(POOLS, name)
        assert item is not None
        return item.get("status")

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [each for each in self.status()["conditions"] if each["type"] == kind]
        return found["status"], found["reason"]

    def events(self) -> list[str]:
        return [event["reason"] for event in self.server.collections.get(EVENTS, [])]

    def num_patches(self) -> int:
        return sum(method == "PATCH" and path.endswith("/status") for method, path in self.server.calls)


@contextlib.asynccontextmanager
async def keeping(server: KubeServer, *, default: DefaultPool | None = None) -> AsyncIterator[Rig]:
    rig = Rig(server, default=default)
    rig.fleet.start()
    try:
        await rig.fleet.wait_ready()
        await rig.lease.attempt()
        yield rig
    finally:
        await rig.fleet.close()
        await rig.kube.close()


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[KubeServer, Pod]]:
    """A pool `chat` with one pod that runs."""
    real = await start_simulated_pod("pod-a")
    try:
        async with KubeServer() as server:
            server.pods = [pod("a", ip="127.0.0.1", labels={"app": "chat"})]
            server.put(POOLS, engine_pool("chat", port=real.grpc_port))
            yield server, real
    finally:
        await real.stop()


async def test_a_status_is_written_once_and_again_only_when_it_differs() -> None:
    async with served() as (server, _), keeping(server) as rig:
        await rig.keeper.look(rig.fleet)
        assert rig.status()["pods"] == {"total": 1, "ready": 1}
        assert (rig.condition("Accepted"), rig.condition("Ready")) == (("True", "Accepted"), ("True", "PodsReady"))
        assert rig.condition("IndexInSync") == ("True", "InSync")
        assert "hitRatio" not in rig.status()
        for _ in range(3):
            await rig.look()
        assert (rig.num_patches(), rig.events()) == (1, [])


async def test_pods_that_refuse_the_router_are_named_in_status_and_event(tmp_path: Path) -> None:
    locked = await start_simulated_pod("pod-b", server__auth__keys_dir=write_keys(tmp_path / "keys"))
    try:
        async with served() as (server, _), keeping(server) as rig:
            server.pods = [*server.pods, pod("b", ip="127.0.0.1", labels={"app": "locked"})]
            server.put(POOLS, engine_pool("locked", port=locked.grpc_port))
            await until(lambda: survey_pool(rig.fleet, "locked").refusing == ("pod-b",))
            await rig.look()
            conditions = {each["type"]: each for each in rig.status("locked")["conditions"]}
            assert [conditions[kind]["reason"] for kind in ("Ready", "IndexInSync")] == ["RouterRefused"] * 2
            words = "pod-b: refuse the router's key, operator.pod_key"
            assert words in conditions["Ready"]["message"]
            assert [(each["reason"], each["message"]) for each in server.collections[EVENTS]] == [
                ("RouterRefused", words)
            ]
            assert rig.condition("Ready") == ("True", "PodsReady")
    finally:
        await locked.stop()


async def test_what_pods_become_is_looked_for_more_often_than_a_status_may_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "INTERVAL_S", RENEW_DEADLINE_S - 1)
    async with served() as (server, _), keeping(server) as rig:
        running = asyncio.create_task(rig.keeper.run(rig.fleet))
        try:
            await until(lambda: rig.num_patches() == 1)
            server.say("MODIFIED", pod("a", 200, ip="127.0.0.1", labels={"app": "chat"}, ready=False))
            await until(lambda: survey_pool(rig.fleet, "chat").num_ready == 0)
            rig.clock.now_s += RENEW_DEADLINE_S - 1
            await until(lambda: rig.condition("Ready") == ("False", "NoReadyPods"), timeout_s=5)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_who_does_not_hold_the_lease_writes_nothing() -> None:
    default = DefaultPool(name="more", spec=engine_pool("more")["spec"])
    async with served() as (server, _), keeping(server, default=default) as rig:
        server.put(POOLS, engine_pool("empty"))
        await until(lambda: "empty" in rig.pools.pools)
        rig.clock.now_s += RENEW_DEADLINE_S
        await rig.keeper.look(rig.fleet)
        assert not rig.lease.is_held
        assert (rig.num_patches(), rig.events(), server.find(POOLS, "more")) == (0, [], None)


async def test_what_matters_is_written_within_a_second_and_figures_now_and_then() -> None:
    async with served() as (server, _), keeping(server) as rig:
        await rig.keeper.look(rig.fleet)
        (view,) = rig.fleet.snapshot()
        rig.fleet.settle("r", view, prompt_tokens=100, cached_tokens=75, output_tokens=1)
        await rig.look()
        assert "hitRatio" not in rig.status()
        await rig.look(after_s=FIGURES_INTERVAL_S)
        assert rig.status()["hitRatio"] == "0.75"
        server.put(PODS, pod("a", ip="127.0.0.1", labels={"app": "chat"}, ready=False))
        await until(lambda: not rig.fleet.snapshot())
        await rig.look(after_s=INTERVAL_S / 2)
        assert rig.condition("Ready") == ("True", "PodsReady")
        await rig.look(after_s=INTERVAL_S / 2)
        assert rig.condition("Ready") == ("False", "NoReadyPods")


async def test_a_conflict_is_settled_by_what_the_other_one_wrote() -> None:
    async with served() as (server, _), keeping(server) as rig:
        server.is_mute = True
        item = server.put(POOLS, engine_pool("chat", port=rig.pools.pools["chat"].port, model="simulated"))
        await rig.keeper.look(rig.fleet)
        assert (rig.num_patches(), rig.status()) == (1, None)
        await rig.look()
        assert rig.status()["observedGeneration"] == item["metadata"]["generation"] == 2
        assert rig.status()["conditions"][0]["observedGeneration"] == 2


async def test_an_api_that_refuses_a_status_is_asked_again_later() -> None:
    async with served() as (server, _), keeping(server) as rig:
        server.refuse("PATCH", "/status", 500)
        await rig.keeper.look(rig.fleet)
        await rig.look()
        assert (rig.num_patches(), rig.status()) == (1, None)
        await rig.look(after_s=5.0)
        assert rig.status()["pods"]["ready"] == 1


async def test_a_pool_without_pods_and_one_that_cannot_be_read_are_told_once() -> None:
    async with KubeServer() as server:
        server.put(POOLS, engine_pool("chat"))
        server.put(POOLS, engine_pool("bad", port=0))
        async with keeping(server) as rig:
            for _ in range(3):
                await rig.look()
            assert sorted(rig.events()) == ["InvalidSpec", "NoPods"]
            assert rig.condition("Ready") == ("False", "NoPods")
            assert rig.status("bad")["conditions"][0]["reason"] == "InvalidSpec"
            server.put(POOLS, engine_pool("bad"))
            await until(lambda: not rig.pools.problems)
            await rig.look()
            assert rig.status("bad")["conditions"][0]["reason"] == "Accepted"


async def test_a_pool_whose_pods_are_all_another_pools_is_told_whose() -> None:
    async with served() as (server, real):
        server.put(POOLS, engine_pool("later", port=real.grpc_port, selector={"matchLabels": {"app": "chat"}}))
        async with keeping(server) as rig:
            await rig.keeper.look(rig.fleet)
            assert rig.condition("Ready") == ("True", "PodsReady")
            (ready,) = [each for each in rig.status("later")["conditions"] if each["type"] == "Ready"]
            told = "the pods that spec.selector finds are those of chat, which come first by name"
            assert (ready["status"], ready["reason"], ready["message"]) == ("False", "NoPods", told)
            assert [event["message"] for event in server.collections[EVENTS]] == [told]


async def test_a_digest_that_did_not_match_and_pods_that_differ_are_told() -> None:
    async with served() as (server, real), keeping(server) as rig:
        await rig.keeper.look(rig.fleet)
        (followed,) = rig.fleet.pods()
        rig.fleet.index.apply(followed.subscriber.replica.key, [Stored(1, 0)])
        await until(lambda: followed.subscriber.num_digest_resyncs == 1)
        await rig.look()
        assert rig.events() == ["IndexResync"]
        server.put(POOLS, engine_pool("chat", port=real.grpc_port, model="another"))
        await until(lambda: survey_pool(rig.fleet, "chat").other_model == ("pod-a",))
        await until(lambda: survey_pool(rig.fleet, "chat").out_of_step == ())
        for _ in range(3):
            await rig.look()
        assert rig.events() == ["IndexResync", "PodsDiffer"]
        assert rig.condition("IndexInSync") == ("False", "PodsDiffer")
        assert rig.condition("Ready") == ("False", "NoReadyPods")


async def test_a_default_pool_is_made_and_told_and_its_refusal_does_not_hold_up_statuses() -> None:
    default = DefaultPool(name="more", spec=engine_pool("more")["spec"])
    async with served() as (server, _), keeping(server, default=default) as rig:
        server.refuse("POST", "/enginepools", 403)
        with pytest.raises(KubeError):
            await rig.look()
        assert rig.status()["pods"] == {"total": 1, "ready": 1}
        await rig.look()
        assert server.find(POOLS, "more") is not None
        assert rig.events() == ["DefaultPoolCreated"]
