"""A string stays the string that it is, whatever YAML would read in it."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from support.helm import CHART, HelmError, render
from support.value_case import ENGINE_POD, Case, read, values_of

from helm import cluster_cases, pod_cases, service_cases

_CASES: dict[str, Case] = pod_cases.CASES | service_cases.CASES | cluster_cases.CASES
_CASES |= {
    "nameOverride": Case(
        "x",
        ("Service", "", "metadata", "labels", "app.kubernetes.io/name"),
        "x",
        {"fullnameOverride": "rel-headstart"},
    ),
    "model.hfToken.existingSecret": Case(
        "x",
        (*ENGINE_POD, "volumes", "hf-token", "secret", "secretName"),
        "x",
        {"model.source.type": "hf", "model.source.uri": "org/name"},
    ),
    "server.auth.existingSecret": Case("x", (*ENGINE_POD, "volumes", "keys", "secret", "secretName"), "x"),
    "monitoring.dashboards.namespace": Case(
        "x", ("ConfigMap", "dashboard-router", "metadata", "namespace"), "x", {"monitoring.dashboards.enabled": True}
    ),
    "tests.caSecret": Case(
        "x",
        ("Pod", "test", "spec", "volumes", "tls", "projected", "sources", "0", "secret", "name"),
        "x",
        {"server.tls.enabled": True, "server.tls.existingSecret": "t"},
    ),
    "tests.tenant": Case(
        "x",
        ("Pod", "test", "spec", "volumes", "key", "secret", "items", "0", "key"),
        "x",
        {"server.auth.existingSecret": "t"},
    ),
}
# What YAML reads as a number, nothing, a truth, a mapping, an alias, not at all, and as two lines.
_TRICKY = ("123", "~", "true", "a: b", "*a", "`a", "a\nb: c")
# A part of an expression in quotes of its own; and what has a form that none of these fits.
_INSIDE = ("monitoring.prometheusRule.engineMatchers", "monitoring.prometheusRule.operatorMatchers")
_FORMED = ("image.digest", "operator.image.digest", "telemetry.otlp.endpoint", "telemetry.traces.samplerArg")


_TEXTS = ("objectName", "dataKey", "dataKeyOrNone", "imageRepository", "imageTag")


def _strings() -> list[str]:
    """The keys of values that are strings and that the schema leaves some freedom."""
    scripts = runpy.run_path(str(CHART.parent / "chart_values.py"))
    found = list(scripts["leaves"](scripts["read_values"]()))
    free = (value for value in found if isinstance(value.default, str) and not {"enum", "$ref"} & value.schema.keys())
    named = (value for value in found if value.schema.get("$ref", "").rpartition("/")[2] in _TEXTS)
    return [value.key for value in (*free, *named) if value.key not in (*_INSIDE, *_FORMED)]


@pytest.mark.parametrize("key", _strings())
def test_it_is_refused_by_its_key_or_arrives_as_it_is(key: str) -> None:
    case = _CASES[key]
    taken = 0
    for text in _TRICKY:
        try:
            found = read(render(values_of({**case.also, key: text})), case.place)
        except HelmError as error:
            refusal = str(error)
        else:
            taken += 1
            assert _holds(found, text, case), (text, found)
            continue
        assert key.rpartition(".")[2] in refusal
        assert "YAML parse error" not in refusal
    assert taken


def _holds(found: Any, text: str, case: Case) -> bool:
    """The same string, or inside of what the case's own value is inside of; else it is enough that YAML was read."""
    if case.expected == case.value:
        return bool(found == text)
    return text in found if case.value in case.expected else found is not None


@pytest.mark.parametrize("helm_name", ["123", "1e3"])
def test_the_names_of_release_and_namespace_are_strings_too(helm_name: str) -> None:
    objects = render(
        {"fullnameOverride": "true", "namespaceOverride": helm_name, "monitoring": {"podMonitor": {"enabled": True}}}
    )
    for item in objects.values():
        assert isinstance(item["metadata"]["name"], str)
        assert item["metadata"].get("namespace", helm_name) == helm_name
