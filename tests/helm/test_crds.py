"""No upgrade drops the definition of EnginePools, and so all pools, from a release: helm deletes what is dropped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.helm import CHART, NAMESPACE, RELEASE, HelmError, helm3, helm4, run_helm

Json = dict[str, Any]

_FILE = CHART / "crd" / "enginepool.yaml"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/enginepools.headstart.dev"
_ROUTER = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}-headstart-operator"
_KEEP = {"helm.sh/resource-policy": "keep"}
_KINDS = {
    "v1": ("ConfigMap", "Pod", "Service", "ServiceAccount"),
    "apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
    "apps/v1": ("Deployment",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
}


def _plural(kind: str) -> str:
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")


def _discovery() -> dict[str, Json]:
    """What helm asks for to learn which kinds there are."""
    groups = []
    found: dict[str, Json] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    for version, kinds in _KINDS.items():
        resources = [
            {
                "name": _plural(kind),
                "kind": kind,
                "namespaced": kind != "CustomResourceDefinition",
                "verbs": ["get"],
            }
            for kind in kinds
        ]
        listed = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        found[f"/{'apis' if '/' in version else 'api'}/{version}"] = listed
        if "/" in version:
            one = {"groupVersion": version, "version": version.partition("/")[2]}
            groups.append({"name": version.partition("/")[0], "versions": [one], "preferredVersion": one})
    return found | {"/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}}


@contextmanager
def _cluster(objects: dict[str, Json]) -> Iterator[str]:
    """The address of an API server that has these objects, by path, and can only be read."""
    answers = _discovery() | objects

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is wrong with being asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _live(**annotations: str) -> Json:
    definition: Json = yaml.safe_load(_FILE.read_text())
    definition["metadata"]["annotations"] = annotations
    return definition


def _owned(release: str, **annotations: str) -> Json:
    owner = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": NAMESPACE}
    return _live(**owner, **annotations)


def _render(helm: Path, live: Json | None, *options: str, router: bool = True) -> bool:
    """Whether the release has the definition on a cluster with that one. Raises HelmError."""
    objects = {_PATH: live} if live else {}
    if router:
        objects[_ROUTER] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    with _cluster(objects) as url:
        asked = ("--dry-run=server", f"--kube-apiserver={url}", "--disable-openapi-validation", *options)
        text = run_helm("template", RELEASE, CHART, f"--namespace={NAMESPACE}", *asked, helm=helm)
    return "kind: CustomResourceDefinition" in text


_WHOSE = {"nobody": _live(), "release other": _owned("other")}


@pytest.mark.parametrize("program", [helm3, helm4], ids=["helm 3", "helm 4"])
@pytest.mark.parametrize("whose", _WHOSE)
def test_an_upgrade_that_may_delete_the_definition_is_refused(program: Any, whose: str) -> None:
    with pytest.raises(HelmError) as refusal:
        _render(program(), _WHOSE[whose], "--is-upgrade")
    assert f"belongs to {whose}" in str(refusal.value)
    assert "kubectl annotate --overwrite crd enginepools.headstart.dev helm.sh/resource-policy=keep" in str(
        refusal.value
    )


@pytest.mark.parametrize("live", [_live(**_KEEP), _owned("other", **_KEEP)])
def test_one_that_stays_by_itself_is_left_alone(live: Json) -> None:
    assert not _render(helm4(), live, "--is-upgrade")


@pytest.mark.parametrize("live", _WHOSE.values())
def test_a_first_install_drops_nothing_and_leaves_anothers_alone(live: Json) -> None:
    assert not _render(helm4(), live, router=False)


@pytest.mark.parametrize("live", [None, _owned(RELEASE)])
def test_its_own_is_brought_again_by_every_upgrade(live: Json | None) -> None:
    assert _render(helm4(), live, "--is-upgrade")


def test_a_release_that_gives_its_router_up_is_held_to_the_same() -> None:
    without = ("--is-upgrade", "--set=operator.enabled=false")
    with pytest.raises(HelmError, match="may delete"):
        _render(helm4(), _owned(RELEASE), *without)
    assert not _render(helm4(), _owned(RELEASE, **_KEEP), *without)
    assert not _render(helm4(), _owned("other"), *without, router=False)


def test_what_a_person_applies_from_the_file_stays() -> None:
    assert yaml.safe_load(_FILE.read_text())["metadata"]["annotations"] == _KEEP
