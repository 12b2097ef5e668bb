"""What breaks in a cluster, and that answers go on: routers, engine containers, a node, the API server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import client, control_plane, kube, network, place, programs, releases
from cluster.releases import Release

_MAX_TOKENS = 400
_PROMPT = "Tell a very long story of the sea."


@pytest.fixture(scope="module")
def release(namespace: str) -> Iterator[Release]:
    """A pod and a router on each node."""
    installed = Release(namespace)
    releases.install(installed, {"replicaCount": 2})
    yield installed
    releases.uninstall(installed)


@pytest.fixture(scope="module")
def undisturbed(release: Release) -> tuple[int, ...]:
    return client.generate(release.address, _PROMPT, max_tokens=_MAX_TOKENS).token_ids


@pytest.fixture
def stream(release: Release, undisturbed: tuple[int, ...], tmp_path: Path) -> client.Stream:
    """One that has begun."""
    releases.await_pool(release, 2)
    started = client.Stream(release.address, _PROMPT, tmp_path / "stream.jsonl", max_tokens=_MAX_TOKENS)
    started.await_tokens(5)
    return started


def test_an_answer_goes_on_when_every_engine_container_but_one_is_killed(
    release: Release, undisturbed: tuple[int, ...], stream: client.Stream
) -> None:
    """Whichever pod it runs on, it is one of the two that go, one after the other."""
    for pod in release.pods("engine"):
        _kill_container(pod)
        _await_restart(release, pod)
    assert stream.finish().token_ids == undisturbed


def test_an_answer_and_the_status_go_on_when_the_leading_router_is_killed(
    release: Release, undisturbed: tuple[int, ...], stream: client.Stream
) -> None:
    holder = release.holder()
    leading = [pod for pod in release.pods("operator") if kube.name_of(pod) in holder]
    assert len(leading) == 1, holder
    name = kube.name_of(leading[0])
    kube.run("delete", "pod", name, f"--namespace={release.namespace}", "--force", "--grace-period=0")
    assert stream.finish().token_ids == undisturbed
    kube.until("another holder", lambda: release.holder() not in ("", holder))
    releases.scale(release, 1)
    releases.await_pool(release, 1)
    releases.scale(release, 2)
    releases.await_pool(release, 2)


def test_answers_go_on_while_the_api_server_is_away(release: Release) -> None:
    address = release.address
    releases.await_pool(release, 2)
    programs.stop("apiserver", kill=True)
    try:
        assert client.generate(address, f"{_PROMPT} Begin.").token_ids
    finally:
        control_plane.start_api_server()
    releases.scale(release, 1)
    releases.await_pool(release, 1)
    releases.scale(release, 2)
    releases.await_pool(release, 2)


def test_answers_go_on_when_a_node_is_lost_and_its_pods_are_replaced(
    release: Release, undisturbed: tuple[int, ...], tmp_path: Path
) -> None:
    here, lost = place.NODES
    releases.await_pool(release, 2)
    (router,) = [pod for pod in release.pods("operator") if pod["spec"]["nodeName"] == here.name]
    endpoint = f"{router['status']['podIP']}:50051"
    streams = [_start(endpoint, tmp_path / f"{number}.jsonl") for number in range(4)]
    for stream in streams:
        stream.await_tokens(5)
    network.set_link(lost, up=False)
    try:
        for stream in streams:
            assert stream.finish().token_ids == undisturbed
        kube.until("replaced pods", lambda: _are_on(release, here), patience_s=90)
        kube.until("a pool of ready pods", lambda: release.pool()["status"]["pods"]["ready"] == 2)
        assert client.generate(endpoint, "Hello").token_ids
    finally:
        network.set_link(lost, up=True)
    kube.run("wait", "--for=condition=Ready", f"node/{lost.name}", "--timeout=60s")
    releases.await_pool(release, 2)


def _start(endpoint: str, output: Path) -> client.Stream:
    return client.Stream(endpoint, _PROMPT, output, max_tokens=_MAX_TOKENS)


def _are_on(release: Release, node: place.Node) -> bool:
    pods = [*release.pods("engine"), *release.pods("operator")]
    return len(pods) == 4 and all(pod["spec"]["nodeName"] == node.name and kube.is_ready(pod) for pod in pods)


def _kill_container(pod: kube.Json) -> None:
    """As the kernel does it when memory is short: from outside, and with no chance to say anything."""
    found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _serves_in(pod, pid)]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def _serves_in(pod: kube.Json, pid: int) -> bool:
    process = Path("/proc") / str(pid)
    try:
        is_of_pod = f"/pod{pod['metadata']['uid']}/" in (process / "cgroup").read_text()
        return is_of_pod and b"serve" in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _await_restart(release: Release, pod: kube.Json) -> None:
    def has_restarted() -> bool:
        found = kube.read("pod", kube.name_of(pod), namespace=release.namespace)
        (status,) = found["status"]["containerStatuses"]
        return status["restartCount"] >= 1 and kube.is_ready(found)

    kube.until(f"restart of {kube.name_of(pod)}", has_restarted)
