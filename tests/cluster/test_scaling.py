"""One pod, then four, then one again, while answers stream: nothing is lost, and the index follows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import client, kube, releases
from cluster.releases import Release

_MAX_TOKENS = 300
_PROMPTS = tuple(f"Write a long story about ship number {number}." for number in range(4))


@pytest.fixture(scope="module")
def release(namespace: str) -> Iterator[Release]:
    installed = Release(namespace)
    releases.install(installed)
    yield installed
    releases.uninstall(installed)


def test_streams_outlive_the_pods_that_began_them(release: Release, tmp_path: Path) -> None:
    alone = [client.generate(release.address, prompt, max_tokens=_MAX_TOKENS).token_ids for prompt in _PROMPTS]
    releases.scale(release, 4)
    _await_pods(release, 4)

    streams = [_start(release, prompt, tmp_path) for prompt in _PROMPTS]
    for stream in streams:
        stream.await_tokens(5)
    releases.scale(release, 1)
    answers = [stream.finish() for stream in streams]

    assert [answer.token_ids for answer in answers] == alone
    assert {answer.finish_reason for answer in answers} == {"FINISH_REASON_LENGTH"}
    _await_pods(release, 1)


def test_the_index_is_what_the_remaining_pods_hold(release: Release) -> None:
    client.generate(release.address, client.RULES)
    in_sync = lambda: kube.condition(release.pool(), "IndexInSync").get("status") == "True"  # noqa: E731
    kube.until("index in sync", in_sync)
    (pod, *_) = release.pods("operator")
    verify = kube.in_pod(release.namespace, kube.name_of(pod), "headstart", "cache", "verify", "--json")
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)


def test_the_pool_without_pods_says_so_and_tells_an_event(release: Release) -> None:
    releases.scale(release, 0)
    no_pods = lambda: kube.condition(release.pool(), "Ready").get("reason") == "NoPods"  # noqa: E731
    kube.until("pool without pods", no_pods)
    events = kube.read_all("events", namespace=release.namespace)
    about_pool = {each["reason"] for each in events if each["involvedObject"]["kind"] == "EnginePool"}
    assert "NoPods" in about_pool
    releases.scale(release, 1)
    _await_pods(release, 1)


def _start(release: Release, prompt: str, folder: Path) -> client.Stream:
    output = folder / f"{abs(hash(prompt))}.jsonl"
    return client.Stream(release.address, prompt, output, max_tokens=_MAX_TOKENS)


def _await_pods(release: Release, count: int) -> None:
    counted = {"total": count, "ready": count}
    kube.until(f"{count} pods in the pool", lambda: release.pool().get("status", {}).get("pods") == counted)
