"""Every case of the chart against helm's own rules and the schemas of every Kubernetes that it says it runs on."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate import utils as schemas
from support.helm import CHART, HelmError, helm3, helm4, render, run_helm

Json = dict[str, Any]

_CASES = sorted((CHART / "ci").glob("*-values.yaml"))
_OLDEST, _NEWEST = 29, 37
# Cases that use what came later.
_OLDEST_OF = {"newest-values": 32}
_VERSIONS = [f"1.{minor}" for minor in range(_OLDEST, _NEWEST + 1)]
# Custom resources, of ours and of others: the schemas have none.
_UNKNOWN = frozenset({"EnginePool", "PodMonitor", "PrometheusRule", "ScaledObject", "GRPCRoute"})


@pytest.fixture(scope="module", autouse=True)
def _read_each_schema_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "schema_contents", functools.cache(schemas.schema_contents))
        yield


@functools.cache
def _fault(text: str, version: str) -> str:
    """Why an object, as JSON, is not one of that Kubernetes; "" when it is. Many cases have the same ones."""
    item = json.loads(text)
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{item['kind']} {item['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return "" if error.kind in _UNKNOWN else f"{error.kind} is no kind of {item['apiVersion']} in {version}"
    return ""


def test_there_are_cases() -> None:
    named = {case.name.removesuffix("-values.yaml") for case in _CASES}
    assert named >= {"minimal", "cpu", "gpu", "auth", "pvc", "hf-offline", "everything"}


@pytest.mark.parametrize("helm", [helm3, helm4], ids=["helm 3", "helm 4"])
def test_helm_finds_nothing_to_complain_of(helm: Any) -> None:
    run_helm("lint", "--strict", CHART, helm=helm())
    for case in _CASES:
        run_helm("lint", "--strict", CHART, "--values", case, helm=helm())


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_both_helms_make_the_same_of_it(case: Path) -> None:
    newest = ("--values", case, "--kube-version", _VERSIONS[-1])
    assert render(None, *newest, helm=helm3()) == render(None, *newest, helm=helm4())


@pytest.mark.parametrize("version", _VERSIONS)
def test_every_object_is_what_that_kubernetes_takes(version: str) -> None:
    faults = set()
    minor = int(version.partition(".")[2])
    for case in (each for each in _CASES if minor >= _OLDEST_OF.get(each.stem, _OLDEST)):
        for item in render(None, "--values", case, "--kube-version", version).values():
            faults.add(_fault(json.dumps(item, sort_keys=True), version))
    assert faults - {""} == set()


def test_the_check_of_this_file_sees_faults() -> None:
    service: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"sellector": {}}}
    assert "sellector" in _fault(json.dumps(service), _VERSIONS[0])
    assert "no kind of" in _fault(json.dumps({**service, "kind": "Servise"}), _VERSIONS[0])


def test_the_oldest_kubernetes_is_the_one_that_the_chart_names() -> None:
    assert f'kubeVersion: ">=1.{_OLDEST}.0-0"' in (CHART / "Chart.yaml").read_text()
    with pytest.raises(HelmError, match="incompatible with Kubernetes"):
        render(None, "--kube-version", f"1.{_OLDEST - 1}")
