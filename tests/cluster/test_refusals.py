"""What is wrong is refused with the field's name: by the chart before anything is made, by the API server for pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import kube, releases
from cluster.releases import Release


@pytest.fixture(scope="module")
def pools_namespace(namespace: str) -> Iterator[str]:
    """One in which the API server knows EnginePools."""
    release = Release(namespace)
    releases.install(release, {"replicaCount": 0, "operator": {"replicaCount": 0}})
    yield namespace
    releases.uninstall(release)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicaCountt": 2}, "replicaCountt"),
        ({"engine": {"scheduler": {"max_num_seqz": 1}}}, "max_num_seqz"),
        ({"engine": {"scheduler": {"max_num_seqs": "many"}}}, "max_num_seqs"),
        ({"operator": {"replicaCount": -1}}, "replicaCount"),
        ({"model": {"source": {"type": "ftp"}}}, "type"),
        ({"server": {"tls": {"enabled": True}}}, "server.tls.existingSecret"),
        ({"terminationGracePeriodSeconds": 3}, "terminationGracePeriodSeconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_cannot_work_are_refused(namespace: str, values: dict[str, Any], named: str) -> None:
    assert named in releases.refusal(Release(namespace, "headstart-refused"), values)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, "spec.selector"),
        ({"selector": {}}, "the selector must name a label"),
        ({"selector": {"matchLabels": {"app": "no blanks"}}}, "spec.selector.matchLabels"),
        ({"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}, "In and NotIn need values"),
        ({"selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}, "operator"),
        ({"selector": {"matchLabels": {"app": "a"}}, "port": 0}, "spec.port"),
        ({"selector": {"matchLabels": {"app": "a"}}, "model": ""}, "spec.model"),
        ({"selector": {"matchLabels": {"app": "a"}}, "routing": {"policy": "random"}}, "spec.routing.policy"),
        ({"selector": {"matchLabels": {"app": "a"}}, "limits": {"maxQueuedTokens": -1}}, "spec.limits.maxQueuedTokens"),
        (
            {"selector": {"matchLabels": {"app": "a"}}, "limits": {"maxQueuedRequests": 1, "maxQueuedPerTenant": 2}},
            "maxQueuedPerTenant cannot exceed maxQueuedRequests",
        ),
        ({"selector": {"matchLabels": {"app": "a"}}, "prot": 1}, "spec.prot"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pools_that_cannot_work_are_refused(pools_namespace: str, spec: dict[str, Any], named: str) -> None:
    pool = _pool(pools_namespace, spec)
    assert named in kube.refusal("apply", "--validate=strict", "--filename=-", given=pool)


def test_a_pool_gets_its_defaults(pools_namespace: str) -> None:
    kube.run("apply", "--filename=-", given=_pool(pools_namespace, {"selector": {"matchLabels": {"app": "a"}}}))
    spec = kube.read("enginepool", "chat", namespace=pools_namespace)["spec"]
    assert (spec["port"], spec["routing"]) == (50051, {"policy": "prefix"})


def _pool(namespace: str, spec: dict[str, Any]) -> str:
    metadata = {"name": "chat", "namespace": namespace}
    return kube.as_text(
        {"apiVersion": "headstart.dev/v1alpha1", "kind": "EnginePool", "metadata": metadata, "spec": spec}
    )
