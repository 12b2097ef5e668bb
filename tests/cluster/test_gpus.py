"""The GPU values on nodes that have one GPU each, as they say. What is tested is the placing: the pods use the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster import client, kube, place, releases
from cluster.releases import Release

_VALUES = {
    "replicaCount": 2,
    "accelerator": {"type": "nvidia", "count": 1},
    "image": {"repository": "headstart/pod-cpu"},
    "engine": {"device": "cpu"},
}


@pytest.fixture(scope="module")
def release(namespace: str) -> Iterator[Release]:
    for node in place.NODES:
        _say_of_gpus(node, {"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "1"})
        kube.until("a GPU to give away", lambda node=node: _gpus(node) == "1")
    installed = Release(namespace)
    releases.install(installed, _VALUES)
    yield installed
    releases.uninstall(installed)
    for node in place.NODES:
        _say_of_gpus(node, {"op": "remove", "path": "/status/capacity/nvidia.com~1gpu"})


def test_each_node_gets_the_pod_that_its_gpu_is_for(release: Release) -> None:
    pods = release.pods("engine")
    assert {pod["spec"]["nodeName"] for pod in pods} == {node.name for node in place.NODES}
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert client.generate(release.address, "Hello").token_ids


def test_an_upgrade_with_one_gpu_a_node_comes_to_its_end(release: Release) -> None:
    before = {kube.name_of(pod) for pod in release.pods("engine")}
    releases.upgrade(release, _VALUES | {"podAnnotations": {"reason": "a new pod"}})
    after = {kube.name_of(pod) for pod in release.pods("engine")}
    assert len(after) == 2
    assert not before & after
    assert client.generate(release.address, "Hello").token_ids


def _say_of_gpus(node: place.Node, change: dict[str, str]) -> None:
    patch = json.dumps([change])
    kube.run("patch", "node", node.name, "--subresource=status", "--type=json", f"--patch={patch}")


def _gpus(node: place.Node) -> str:
    gpus: str = kube.read("node", node.name)["status"]["allocatable"].get("nvidia.com/gpu", "")
    return gpus
