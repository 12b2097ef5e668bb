"""Every case of the chart against checkov's rules of what is insecure; what is left is allowed for a reason."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from support.checkov import Finding, findings
from support.helm import CHART, Json, render

_CASES = sorted((CHART / "ci").glob("*-values.yaml"))


class _Allowed(NamedTuple):
    kinds: frozenset[str]
    why: str
    name_ends: str = ""


_WORKLOADS = frozenset({"Deployment", "StatefulSet", "Pod"})
_TEST = frozenset({"Pod"})
_ALLOWED = {
    "CKV_K8S_11": _Allowed(_WORKLOADS, "a CPU limit stalls a step in its middle; whoever wants one sets resources"),
    "CKV_K8S_43": _Allowed(_WORKLOADS, "a digest belongs to whoever has pushed the image: image.digest"),
    "CKV_K8S_15": _Allowed(_WORKLOADS, "tags are versions here, and a restart must not need the registry"),
    "CKV_K8S_40": _Allowed(_WORKLOADS, "the image's user is 65532; a UID in the pod would break OpenShift's ranges"),
    "CKV_K8S_38": _Allowed(frozenset({"Deployment"}), "the router follows pods through the API", "-operator"),
    "CKV_K8S_35": _Allowed(_WORKLOADS, "OpenTelemetry reads a collector's headers from the environment only"),
    "CKV_K8S_8": _Allowed(_TEST, "the test ends by itself"),
    "CKV_K8S_9": _Allowed(_TEST, "nobody waits for the test to be ready"),
    "CKV2_K8S_6": _Allowed(_TEST, "the test listens nowhere"),
}


def _is_allowed(finding: Finding) -> bool:
    allowed = _ALLOWED.get(finding.check)
    return allowed is not None and finding.kind in allowed.kinds and finding.name.endswith(allowed.name_ends)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart's own objects, a file and a namespace for each case: what one lacks must not be found in another."""
    found = tmp_path_factory.mktemp("cases")
    for case in _CASES:
        name = case.name.removesuffix("-values.yaml")
        objects = render(None, "--values", case, "--set", f"namespaceOverride={name}", "--kube-version", "1.37")
        ours = [each for each in objects.values() if "helm.sh/chart" in each["metadata"].get("labels", {})]
        (found / f"{name}.yaml").write_text(yaml.safe_dump_all(map(_own, ours)))
    return found


def _own(item: Json) -> Json:
    """Without the containers that a case adds: they are whoever's adds them."""
    item = copy.deepcopy(item)
    spec = item.get("spec", {}).get("template", item).get("spec", {})
    for key in {"containers", "initContainers"} & spec.keys():
        spec[key] = [each for each in spec[key] if "headstart/" in each["image"]]
    return item


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first time it is installed
def test_nothing_is_insecure_but_what_is_allowed(folder: Path) -> None:
    found = findings(folder)
    assert [each for each in found if not _is_allowed(each)] == []
    # An allowance that nothing needs any more hides what comes later.
    assert {each.check for each in found} == _ALLOWED.keys()
