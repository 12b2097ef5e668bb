"""The default pool: made when there is none, changed when the settings do, and never taken from a person."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from headstart_operator.kube.client import KubeClient, KubeError, load_credentials
from headstart_operator.kube.default import UNSEEN_INTERVAL_S, DefaultPool, DefaultPoolKeeper
from support.kube_server import DEPLOYMENTS, POOLS, KubeServer

OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "the-router", "uid": "d1"}


class Rig:
    def __init__(self, server: KubeServer, kube: KubeClient) -> None:
        self.server = server
        self.kube = kube
        self.now_s = 50.0

    def keeper(self, *, port: int = 1, policy: str = "prefix", labels: dict[str, str] | None = None) -> Any:
        """What an operator of these settings has."""
        spec = {
            "selector": {"matchLabels": labels or {"app": "chat"}},
            "port": port,
            "routing": {"policy": policy},
        }
        pool = DefaultPool(name="chat", spec=spec, labels={"release": "r"}, deployment="the-router")
        return DefaultPoolKeeper(self.kube, pool, namespace="ns", clock=lambda: self.now_s)

    @property
    def item(self) -> Any:
        return self.server.find(POOLS, "chat")

    def put(self, **changes: Any) -> None:
        """A person writes the pool."""
        self.server.put(POOLS, {**self.item, **changes})

    def num(self, method: str) -> int:
        return sum(each == method and path.startswith(POOLS) for each, path in self.server.calls)


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[Rig]:
    async with KubeServer() as server:
        server.put(DEPLOYMENTS, {"metadata": {"name": "the-router", "uid": "d1"}})
        kube = KubeClient(lambda: load_credentials(server.url))
        try:
            yield Rig(server, kube)
        finally:
            await kube.close()


async def test_it_is_made_with_its_owner_and_made_again_when_it_was_removed() -> None:
    async with started() as rig:
        keeper = rig.keeper()
        for _ in range(2):
            done = await keeper.look(None)
            assert done.reason == "DefaultPoolCreated"
            assert rig.item["metadata"]["ownerReferences"] == [OWNER]
            assert rig.item["metadata"]["labels"] == {"release": "r"}
            assert await keeper.look(rig.item) is None
            rig.server.remove(POOLS, "chat")


@pytest.mark.parametrize("code", [403, 404])
async def test_without_a_look_at_its_deployment_it_has_no_owner(code: int) -> None:
    async with started() as rig:
        rig.server.refuse("GET", "/deployments", code)
        await rig.keeper().look(None)
        assert rig.item["metadata"]["ownerReferences"] == []


async def test_what_the_settings_say_is_brought_in_and_what_a_person_added_stays() -> None:
    async with started() as rig:
        await rig.keeper(labels={"app": "chat", "old": "x"}).look(None)
        rig.put(spec={**rig.item["spec"], "limits": {"maxQueuedRequests": 3}})
        keeper = rig.keeper(port=2, policy="round-robin", labels={"app": "chat", "new": "y"})
        done = await keeper.look(rig.item)
        assert done.message == "changed to the router's settings: spec.port, spec.routing, spec.selector"
        assert rig.item["spec"] == {
            "selector": {"matchLabels": {"app": "chat", "new": "y"}},
            "port": 2,
            "routing": {"policy": "round-robin"},
            "limits": {"maxQueuedRequests": 3},
        }
        assert await keeper.look(rig.item) is None
        assert rig.num("PATCH") == 1


@pytest.mark.parametrize(
    ("owners", "labels", "why"),
    [
        ([{**OWNER, "name": "another"}], {"release": "r"}, "it belongs to Deployment another"),
        ([], {"release": "mine"}, "it has neither an owner nor the router's own labels"),
        ([], {}, "it has neither an owner nor the router's own labels"),
    ],
)
async def test_a_persons_pool_is_left_alone_and_what_differs_is_told_once(
    owners: list[Any], labels: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as rig:
        await rig.keeper().look(None)
        rig.put(metadata={**rig.item["metadata"], "ownerReferences": owners, "labels": labels})
        keeper = rig.keeper(port=2)
        done = await keeper.look(rig.item)
        assert (done.reason, done.kind) == ("DefaultPoolNotKept", "Warning")
        assert why in done.message
        assert done.message.endswith("spec.port")
        assert [await keeper.look(rig.item) for _ in range(3)] == [None] * 3
        assert caplog.text.count("EnginePool chat is not kept to the router's settings") == 1
        assert rig.num("PATCH") == 0
        rig.put(spec={**rig.item["spec"], "port": 3, "routing": {"policy": "least-loaded"}})
        assert "spec.port, spec.routing" in (await keeper.look(rig.item)).message


async def test_a_pool_that_has_lost_its_owner_is_taken_back_and_kept_again() -> None:
    async with started() as rig:
        await rig.keeper().look(None)
        metadata = {key: value for key, value in rig.item["metadata"].items() if key != "ownerReferences"}
        rig.put(metadata=metadata)
        keeper = rig.keeper(port=2)
        done = await keeper.look(rig.item)
        assert done.message == "changed to the router's settings: metadata.ownerReferences, spec.port"
        assert rig.item["metadata"]["ownerReferences"] == [OWNER]
        assert rig.item["metadata"]["labels"] == {"release": "r"}
        assert rig.item["spec"]["port"] == 2
        assert await keeper.look(rig.item) is None


async def test_a_pool_that_cannot_be_taken_back_yet_is_told_and_tried_again_later() -> None:
    async with started() as rig:
        rig.server.refuse("GET", "/deployments", 403, times=2)
        await rig.keeper().look(None)
        keeper = rig.keeper(port=2)
        done = await keeper.look(rig.item)
        assert done.reason == "DefaultPoolNotKept"
        assert "Deployment the-router cannot be read" in done.message
        assert await keeper.look(rig.item) is None
        assert sum("/deployments" in path for _, path in rig.server.calls) == 2
        rig.now_s += UNSEEN_INTERVAL_S
        await keeper.look(rig.item)
        assert rig.item["metadata"]["ownerReferences"] == [OWNER]


async def test_one_that_is_about_to_go_and_one_that_changed_meanwhile_are_left_for_the_next_look() -> None:
    async with started() as rig:
        await rig.keeper().look(None)
        seen = rig.item
        going = {**seen, "metadata": {**seen["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}
        assert await rig.keeper(port=2).look(going) is None
        rig.put(spec={**seen["spec"], "model": "m"})
        assert await rig.keeper(port=2).look(seen) is None
        assert rig.item["spec"]["port"] == 1


async def test_one_that_the_watch_leaves_out_for_its_labels_gets_them() -> None:
    async with started() as rig:
        await rig.keeper().look(None)
        rig.put(metadata={**rig.item["metadata"], "labels": {"release": "before", "mine": "1"}})
        done = await rig.keeper().look(None)
        assert done.message == "changed to the router's settings: metadata.labels"
        assert rig.item["metadata"]["labels"] == {"release": "r", "mine": "1"}


async def test_a_persons_pool_that_the_watch_does_not_show_is_asked_for_now_and_then() -> None:
    async with started() as rig:
        await rig.keeper().look(None)
        rig.put(metadata={**rig.item["metadata"], "ownerReferences": [], "labels": {}})
        keeper = rig.keeper(port=2)
        assert (await keeper.look(None)).reason == "DefaultPoolNotKept"
        for _ in range(3):
            assert await keeper.look(None) is None
        assert rig.num("POST") == 2
        rig.now_s += UNSEEN_INTERVAL_S
        await keeper.look(None)
        assert (rig.num("POST"), rig.num("PATCH")) == (3, 0)


async def test_a_refusal_is_told() -> None:
    async with started() as rig:
        rig.server.refuse("POST", "/enginepools", 500)
        with pytest.raises(KubeError):
            await rig.keeper().look(None)
        await rig.keeper().look(None)
        rig.server.refuse("PATCH", "/enginepools", 403)
        with pytest.raises(KubeError):
            await rig.keeper(port=2).look(rig.item)
