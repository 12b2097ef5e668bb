"""From nothing to tokens: the chart on a cluster that never saw it, where pods must be restricted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from cluster import client, kube, releases
from cluster.releases import Release

_CRD = "enginepools.headstart.dev"
_OF_LATENESS = ("Unhealthy", "FailedMount")


@pytest.fixture(scope="module")
def release(namespace: str, measured: Callable[[str], None]) -> Iterator[Release]:
    kube.run("delete", "crd", _CRD, "--ignore-not-found")
    kube.start_visitor(namespace)
    kube.await_visitor(namespace)
    installed = Release(namespace)
    started = time.monotonic()
    releases.install(installed)
    ready = time.monotonic()
    client.generate(installed.address, "Say hello.", max_tokens=1)
    measured(
        f"helm install --wait to the first token: {time.monotonic() - started:.1f} s, "
        f"of which {ready - started:.1f} s until all pods were ready"
    )
    yield installed
    releases.uninstall(installed)


def test_tokens_come_through_the_name_of_the_routers_service(release: Release) -> None:
    answer = client.generate_in_pod(release.namespace, "visitor", release.front, f"{client.RULES}Who are you?")
    assert len(answer.token_ids) == 8
    assert answer.text


def test_the_second_request_finds_the_shared_beginning_cached(release: Release) -> None:
    client.generate(release.address, f"{client.RULES}Is the dock open?")
    answer = client.generate(release.address, f"{client.RULES}What does a mooring cost?")
    assert answer.cached_tokens >= answer.prompt_tokens // 2


def test_the_charts_own_test_passes(release: Release) -> None:
    assert "Phase:          Succeeded" in releases.command(release, "test", release.name, "--logs")


def test_a_pod_says_how_soon_it_was_ready(release: Release, measured: Callable[[str], None]) -> None:
    for component in ("engine", "operator"):
        for pod in release.pods(component):
            (status,) = pod["status"]["containerStatuses"]
            assert status["restartCount"] == 0
            took = _time(kube.condition(pod, "Ready")["lastTransitionTime"]) - _time(
                status["state"]["running"]["startedAt"]
            )
            measured(f"{component} container's start to Ready: {took.total_seconds():.0f} s")


def test_the_pool_is_made_and_says_how_its_pods_are(release: Release, measured: Callable[[str], None]) -> None:
    kube.until("ready pool", lambda: kube.condition(release.pool(), "Ready").get("status") == "True")
    kube.until("index in sync", lambda: kube.condition(release.pool(), "IndexInSync").get("status") == "True")
    pool = kube.until("cached blocks", lambda: _with_blocks(release.pool()))
    assert pool["status"]["pods"] == {"total": 1, "ready": 1}
    assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
    (owner,) = pool["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Deployment", f"{release.name}-operator")
    printed = kube.run("get", "epool", f"--namespace={release.namespace}", "--output=wide")
    assert printed.split()[:5] == ["NAME", "READY", "REASON", "PODS", "READY-PODS"]
    for line in printed.splitlines():
        measured(line)


def test_no_pod_is_warned_of(release: Release) -> None:
    """But of what a starved machine does to any pod: late answers to probes, and files that come at the second try."""
    events = kube.read_all("events", namespace=release.namespace)
    of_pods = [each for each in events if each["involvedObject"]["kind"] == "Pod" and each["type"] == "Warning"]
    told = [f"{each['reason']}: {each['message']}" for each in of_pods if each["reason"] not in _OF_LATENESS]
    assert told == []


def _with_blocks(pool: kube.Json) -> kube.Json | None:
    return pool if pool["status"].get("cachedBlocks") else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
