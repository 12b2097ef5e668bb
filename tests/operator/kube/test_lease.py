"""The Lease: one holder at a time, by clocks that are never compared, and nobody who believes it for too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from headstart_operator.kube.client import KubeClient, KubeError, load_credentials
from headstart_operator.kube.lease import DURATION_S, RENEW_DEADLINE_S, Lease
from support.kube_server import DEPLOYMENTS, LEASES, KubeServer


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Replica:
    """One of several operators; their clocks have nothing in common."""

    def __init__(self, server: KubeServer, identity: str, *, starts_s: float, deployment: str = "") -> None:
        self.kube = KubeClient(lambda: load_credentials(server.url))
        self.clock = Clock(starts_s)
        self.lease = Lease(
            self.kube, namespace="ns", name="l", identity=identity, deployment=deployment, clock=self.clock
        )


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[KubeServer, Replica, Replica]]:
    async with KubeServer() as server:
        first, second = Replica(server, "first", starts_s=1e6), Replica(server, "second", starts_s=3.0)
        yield server, first, second
        for replica in (first, second):
            await replica.kube.close()


def spec(server: KubeServer) -> Any:
    item = server.find(LEASES, "l")
    assert item is not None
    return item["spec"]


async def test_the_first_one_creates_it_and_the_second_waits() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        assert (first.lease.is_held, second.lease.is_held) == (True, False)
        assert (spec(server)["holderIdentity"], spec(server)["leaseTransitions"]) == ("first", 0)
        assert spec(server)["renewTime"].endswith("Z")


async def test_a_lease_belongs_to_the_deployment_and_goes_with_it() -> None:
    async with KubeServer() as server:
        server.put(DEPLOYMENTS, {"metadata": {"name": "the-router", "uid": "d1"}})
        replica = Replica(server, "first", starts_s=0.0, deployment="the-router")
        for _ in range(2):
            await replica.lease.attempt()
        item = server.find(LEASES, "l")
        await replica.kube.close()
        assert item is not None
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "the-router", "uid": "d1"}
        ]


async def test_a_holder_that_renews_keeps_it_for_ever() -> None:
    async with two() as (server, first, second):
        for _ in range(20):
            await first.lease.attempt()
            await second.lease.attempt()
            for replica in (first, second):
                replica.clock.now_s += 2.0
        assert (first.lease.is_held, second.lease.is_held) == (True, False)
        assert spec(server)["acquireTime"] < spec(server)["renewTime"]


async def test_a_lease_that_does_not_change_for_its_duration_is_taken_over() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        second.clock.now_s += DURATION_S - 0.1
        await second.lease.attempt()
        assert not second.lease.is_held
        second.clock.now_s += 0.2
        await second.lease.attempt()
        assert second.lease.is_held
        assert (spec(server)["holderIdentity"], spec(server)["leaseTransitions"]) == ("second", 1)


async def test_a_holder_that_cannot_renew_stops_before_anybody_may_take_over() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        server.refuse("PUT", "/leases/", 500, times=2)
        for passed_s in (RENEW_DEADLINE_S - 0.1, 0.2):
            assert first.lease.is_held
            first.clock.now_s += passed_s
            second.clock.now_s += passed_s
            await second.lease.attempt()
            assert not second.lease.is_held
            with contextlib.suppress(KubeError):
                await first.lease.attempt()
        assert not first.lease.is_held


async def test_one_who_was_overtaken_notices_and_stops() -> None:
    async with two() as (_, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        second.clock.now_s += DURATION_S
        await second.lease.attempt()
        assert first.lease.is_held, "its own clock has stood still"
        await first.lease.attempt()
        assert (first.lease.is_held, second.lease.is_held) == (False, True)
        await first.lease.attempt()
        assert not first.lease.is_held


@pytest.mark.parametrize("is_there", [False, True])
async def test_of_two_who_take_it_at_once_one_gets_it(is_there: bool) -> None:
    async with two() as (server, first, second):
        if is_there:
            server.put(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": ""}})
        await asyncio.gather(first.lease.attempt(), second.lease.attempt())
        held = [replica.lease.is_held for replica in (first, second)]
        assert sorted(held) == [False, True]
        assert spec(server)["holderIdentity"] == ("first" if held[0] else "second")


async def test_released_it_is_free_at_once() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        await first.lease.release()
        assert not first.lease.is_held
        await second.lease.attempt()
        assert second.lease.is_held
        assert spec(server)["leaseDurationSeconds"] == DURATION_S


async def test_who_does_not_hold_it_releases_nothing() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await second.lease.attempt()
        await second.lease.release()
        assert spec(server)["holderIdentity"] == "first"


async def test_it_asks_for_no_more_rights_than_it_needs() -> None:
    async with two() as (server, first, second):
        await first.lease.attempt()
        await first.lease.attempt()
        await second.lease.attempt()
        await first.lease.release()
        assert server.verbs() == {("get", "leases"), ("create", "leases"), ("update", "leases")}
