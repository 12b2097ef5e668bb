"""Pods as discovery reads them: where they are, how they are and which pool asked."""

from __future__ import annotations

import asyncio
import contextlib

from headstart_operator.decision.pool import Pool
from headstart_operator.kube.client import KubeClient, load_credentials
from headstart_operator.kube.pods import KubernetesPods, pod_ref
from support.kube_server import KubeServer, pod

POOL = Pool(name="", selector="app=x", port=5)


async def test_pods_are_those_of_the_selector_as_whole_sets() -> None:
    async with KubeServer() as server:
        server.pods = [pod("1"), pod("2", labels={"app": "y"}), pod("3", ip="")]
        kube = KubeClient(lambda: load_credentials(server.url))
        async with contextlib.aclosing(KubernetesPods(kube, POOL, namespace="ns").follow()) as sets:
            first = await asyncio.wait_for(anext(sets), 20)
            server.say("MODIFIED", pod("3", 200, ip="10.0.0.3"))
            second = await asyncio.wait_for(anext(sets), 20)
        await kube.close()
    assert {ref.uid for ref in first} == {"1"}
    assert {ref.uid for ref in second} == {"1", "3"}


def test_pods_without_a_place_are_left_out_and_the_others_say_how_they_are() -> None:
    assert pod_ref(pod("1", 1, ip=""), POOL) is None
    assert pod_ref(pod("1", 1, phase="Failed", reason="Evicted"), POOL) is None
    ref = pod_ref(pod("1", 1, ip="fd00::1", ready=False, terminating=True), POOL)
    assert ref is not None
    assert (ref.address, ref.is_ready, ref.is_terminating, ref.labels) == ("[fd00::1]:5", False, True, {"app": "x"})
    assert (ref.pool, ref.model) == ("", "")


def test_pods_know_the_pool_that_asked_for_them() -> None:
    ref = pod_ref(pod("1", 1), Pool(name="chat", selector="app=x", port=7, model="m"))
    assert ref is not None
    assert (ref.address, ref.pool, ref.model) == ("10.0.0.1:7", "chat", "m")


def test_two_pods_may_have_one_address_one_after_the_other() -> None:
    old, new = pod_ref(pod("1", 1, terminating=True), POOL), pod_ref(pod("2", 2), POOL)
    assert old is not None
    assert new is not None
    assert (old.address, old.uid == new.uid) == (new.address, False)
