"""Every value of the chart has an effect, is described, and is held to a type."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.helm import HelmError, helm3, render
from support.value_case import Case, read, same, values_of

from helm import cluster_cases, pod_cases, service_cases

_SCRIPTS = Path(__file__).parents[2] / "helm"
_CASES: dict[str, Case] = pod_cases.CASES | service_cases.CASES | cluster_cases.CASES
# Their effect is shown where what they make is read: test_monitoring.py, test_hook.py.
_ELSEWHERE = ("monitoring.", "tests.")


def _keys() -> set[str]:
    scripts = runpy.run_path(str(_SCRIPTS / "chart_values.py"))
    found = {value.key for value in scripts["leaves"](scripts["read_values"]())}
    return {key for key in found if not key.startswith(_ELSEWHERE)}


def test_every_value_has_a_case_and_every_case_a_value() -> None:
    assert _keys() == _CASES.keys()


@pytest.mark.parametrize("key", _CASES)
def test_a_value_changes_what_it_says(key: str) -> None:
    case = _CASES[key]
    with_it = read(render(values_of({**case.also, key: case.value})), case.place)
    assert same(with_it, case.expected), with_it


@pytest.mark.parametrize("key", _CASES)
def test_without_the_value_it_reads_otherwise(key: str) -> None:
    case = _CASES[key]
    try:
        without = read(render(values_of(case.also)), case.place)
    except HelmError:
        return  # what it needs cannot be without it
    assert not same(without, case.expected)


@pytest.mark.parametrize(
    "section", ["", "model.source", "engine.scheduler", "operator", "operator.settings", "server.tls"]
)
@pytest.mark.parametrize("helm", ["3", "4"])
def test_a_key_that_does_not_exist_is_refused_at_every_level(section: str, helm: str) -> None:
    key = f"{section}.replicaCountt".removeprefix(".")
    with pytest.raises(HelmError, match="replicaCountt"):
        render(values_of({key: 1}), helm=helm3() if helm == "3" else None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replicaCount", -1),
        ("replicaCount", "many"),
        ("model.dtype", "float8"),
        ("server.ports.grpc", 80),
        ("engine.scheduler.max_num_seqs", 0),
        ("operator.settings.policy", "random"),
        ("engine.cache.hash_seed", "secret"),
        ("accelerator.count", 2),
        ("image.digest", "sha256:1"),
        ("probes.startup", {"periodSeconds": 0}),
        ("podDisruptionBudget.minAvailable", "half"),
        ("resources", {"limits": {"memory": "2GB"}}),
        ("tolerations", [{"kee": "x"}]),
        ("networkPolicy.clients", [{}]),
        ("networkPolicy.engineClients", [{"ipBlock": {}}]),
        ("hostAliases", [{}]),
        ("operator.hostAliases", [{}]),
        ("topologySpreadConstraints", [{}]),
        ("operator.topologySpreadConstraints", [{}]),
        ("autoscaling.hpa.metrics", [{}]),
        ("extraObjects", ["0777"]),
        ("extraObjects", [{}]),
        ("image.tag", "a b"),
        ("server.auth.existingSecret", "Not_A_Name"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(HelmError, match=key.rpartition(".")[2]):
        render(values_of({key: value}))


def test_the_schema_is_what_values_and_settings_give() -> None:
    command = [sys.executable, str(_SCRIPTS / "generate_schema.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
