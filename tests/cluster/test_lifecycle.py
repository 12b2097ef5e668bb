"""A release's life with helm 3 and helm 4: installed, upgraded, rolled back, taken away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import client, kube, releases
from cluster.releases import Release
from support import helm

_CRD = "enginepools.headstart.dev"
_KINDS = (
    "configmaps,deployments,endpoints,enginepools,events.events.k8s.io,horizontalpodautoscalers,ingresses,jobs,leases,"
    "networkpolicies,persistentvolumeclaims,poddisruptionbudgets,pods,replicasets,rolebindings,roles,secrets,"
    "serviceaccounts,services,statefulsets"
)
# What every namespace has.
_ALWAYS_THERE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


@pytest.fixture(scope="module", params=[3, 4], ids=["helm3", "helm4"])
def release(request: pytest.FixtureRequest, namespace: str) -> Iterator[Release]:
    """Taken away by the last test; this is for when that is not reached."""
    installed = Release(namespace, helm=helm.helm3() if request.param == 3 else helm.helm4())
    releases.install(installed)
    yield installed
    if releases.command(installed, "list", "--short").strip():
        releases.uninstall(installed)


def test_a_new_release_answers(release: Release) -> None:
    assert client.generate(release.address, "Hello").token_ids


def test_an_upgrade_changes_what_the_values_change(release: Release) -> None:
    releases.upgrade(release, {"replicaCount": 2, "engine": {"scheduler": {"max_num_seqs": 7}}})
    assert len(release.pods("engine")) == 2
    assert "max_num_seqs: 7" in _settings(release)
    assert client.generate(release.address, "Hello").token_ids


def test_a_rollback_restores_it(release: Release) -> None:
    releases.command(release, "rollback", release.name, "1", "--wait", "--timeout=120s")
    kube.until("one pod", lambda: len(release.pods("engine")) == 1)
    assert "max_num_seqs" not in _settings(release)
    assert client.generate(release.address, "Hello").token_ids


def test_an_upgrade_does_not_delete_a_definition_of_pools_that_a_person_put_back(release: Release) -> None:
    kube.run("annotate", "crd", _CRD, "helm.sh/resource-policy-", "meta.helm.sh/release-name-")
    with pytest.raises(AssertionError, match="may delete"):
        releases.upgrade(release)
    kube.run("annotate", "crd", _CRD, "helm.sh/resource-policy=keep")
    releases.upgrade(release)
    assert release.pool()["spec"]["port"] == 50051


def test_taking_it_away_leaves_only_the_definition_of_pools(release: Release) -> None:
    releases.uninstall(release)
    kube.until("empty namespace", lambda: _left(release.namespace) == set())
    assert kube.read("crd", _CRD)["metadata"]["name"]


def _settings(release: Release) -> str:
    text: str = kube.read("configmap", f"{release.name}-engine", namespace=release.namespace)["data"]["headstart.yaml"]
    return text


def _left(namespace: str) -> set[str]:
    kinds = _KINDS.replace("events.events.k8s.io,", "")
    names = kube.run("get", kinds, f"--namespace={namespace}", "--output=name", "--ignore-not-found").split()
    return {name.replace(".apps", "") for name in names} - _ALWAYS_THERE
