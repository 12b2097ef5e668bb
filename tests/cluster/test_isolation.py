"""Who reaches whom: packets by NetworkPolicy, the API by the router's Role, releases by their pools."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster import client, kube, place, releases
from cluster.releases import Release

_ENGINE_PORTS = (50051, 8000, 9090)
_CLIENT = {"headstart.dev/engine-client": "true"}


@pytest.fixture(scope="module")
def release(namespace: str) -> Iterator[Release]:
    kube.start_visitor(namespace, "stranger")
    kube.start_visitor(namespace, "guest", _CLIENT)
    installed = Release(namespace)
    releases.install(installed)
    for name in ("stranger", "guest"):
        kube.await_visitor(namespace, name)
    yield installed
    releases.uninstall(installed)


@pytest.fixture(scope="module")
def neighbour(release: Release) -> Iterator[Release]:
    """The same chart under the same name, next door."""
    name = f"{release.namespace}-neighbour"
    kube.make_namespace(name)
    installed = Release(name)
    releases.install(installed, {"replicaCount": 2})
    yield installed
    releases.uninstall(installed)
    kube.remove_namespace(name)


@pytest.fixture(scope="module")
def engine_address(release: Release) -> str:
    (pod,) = release.pods("engine")
    address: str = pod["status"]["podIP"]
    return address


@pytest.mark.parametrize("port", _ENGINE_PORTS)
def test_an_unlabelled_pod_reaches_no_port_of_an_engine_pod(release: Release, engine_address: str, port: int) -> None:
    assert not client.can_connect(release.namespace, "stranger", engine_address, port)


def test_a_labelled_pod_reaches_an_engine_pod(release: Release, engine_address: str) -> None:
    assert client.can_connect(release.namespace, "guest", engine_address, 50051)


def test_a_labelled_pod_reaches_no_metrics(release: Release, engine_address: str) -> None:
    assert not client.can_connect(release.namespace, "guest", engine_address, 9090)


def test_any_pod_reaches_the_routers_front_door(release: Release) -> None:
    assert client.generate_in_pod(release.namespace, "stranger", release.front, "Hello").token_ids


def test_an_engine_pod_cannot_reach_out(release: Release, engine_address: str) -> None:
    """Nothing phones home: not even to the API server."""
    (pod,) = release.pods("engine")
    assert not client.can_connect(release.namespace, kube.name_of(pod), place.API_ADDRESS, 6443)


@pytest.mark.parametrize("resource", ["secrets", "configmaps", "deployments", "nodes"])
def test_the_routers_token_lists_nothing_that_it_does_not_need(release: Release, resource: str) -> None:
    assert "Forbidden" in _as_router(release, "get", resource, f"--namespace={release.namespace}")


@pytest.mark.parametrize("resource", ["pods", "enginepools", "secrets"])
def test_the_routers_token_sees_no_other_namespace(release: Release, resource: str) -> None:
    assert "Forbidden" in _as_router(release, "get", resource, "--namespace=kube-system")


def test_the_routers_token_lists_its_own_pods(release: Release) -> None:
    token = _token(release)
    printed = kube.run(*_with_token(token), "get", "pods", f"--namespace={release.namespace}", "--output=name")
    assert len(printed.split()) >= 3


def test_an_engine_pod_has_no_token(release: Release) -> None:
    (pod,) = release.pods("engine")
    names = [volume["name"] for volume in pod["spec"]["volumes"]]
    assert not [name for name in names if name.startswith("kube-api-access")]


def test_two_releases_do_not_see_each_other(release: Release, neighbour: Release) -> None:
    for each, count in ((release, 1), (neighbour, 2)):
        releases.await_pool(each, count)
        names = {kube.name_of(pod) for pod in each.pods("engine")}
        answers = [client.generate(each.address, f"{client.RULES}{number}") for number in range(4)]
        assert {answer.pod for answer in answers} <= names
    assert release.holder() != neighbour.holder()


def test_what_one_release_has_cached_is_not_found_by_the_other(release: Release, neighbour: Release) -> None:
    prompt = "A beginning that only the first release has ever seen. " * 10
    client.generate(release.address, prompt)
    assert client.generate(neighbour.address, prompt).cached_tokens == 0


def _token(release: Release) -> str:
    return kube.run("create", "token", f"{release.name}-operator", f"--namespace={release.namespace}").strip()


def _as_router(release: Release, *arguments: str) -> str:
    return kube.refusal(*_with_token(_token(release)), *arguments)


def _with_token(token: str) -> tuple[str, ...]:
    """Flags that replace the administrator's certificate: a kubeconfig with the token alone."""
    config = place.pki("router.conf")
    found = json.loads(place.admin_config().read_text())
    found["users"][0]["user"] = {"token": token}
    config.write_text(json.dumps(found))
    return (f"--kubeconfig={config}",)
