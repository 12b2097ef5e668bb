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
    releases.await_pool(release, 4)

    streams = [
        client.Stream(release.address, prompt, tmp_path / f"{number}.jsonl", max_tokens=_MAX_TOKENS)
        for number, prompt in enumerate(_PROMPTS)
    ]
    for stream in streams:
        stream.await_tokens(5)
    releases.scale(release, 1)
    answers = [stream.finish() for stream in streams]

    assert [answer.token_ids for answer in answers] == alone
    assert len({answer.pod for answer in answers}) > 1
    assert {answer.finish_reason for answer in answers} == {"FINISH_REASON_LENGTH"}
    releases.await_pool(release, 1)


def test_the_index_is_what_the_remaining_pods_hold(release: Release) -> None:
    client.generate(release.address, client.RULES)
    kube.until("index in sync", lambda: kube.condition(release.pool(), "IndexInSync").get("status") == "True")
    (pod, *_) = release.pods("operator")
    verify = kube.in_pod(release.namespace, kube.name_of(pod), "headstart", "cache", "verify", "--json")
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)


def test_the_pool_without_pods_says_so_and_tells_an_event(release: Release) -> None:
    releases.scale(release, 0)
    kube.until("pool without pods", lambda: kube.condition(release.pool(), "Ready").get("reason") == "NoPods")
    events = kube.read_all("events", namespace=release.namespace)
    about_pool = {each["reason"] for each in events if each["involvedObject"]["kind"] == "EnginePool"}
    assert "NoPods" in about_pool
    releases.scale(release, 1)
    releases.await_pool(release, 1)
