"""Null takes a default away: what may be empty is empty then, and what the chart needs is missed by its name."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support.helm import CHART, HelmError, render
from support.value_case import ABSENT, ENGINE_CONTAINER, ENGINE_POD, OPERATOR_POD, read, values_of

_MAY_BE_EMPTY = (dict, list, str)


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in tree.items():
        found.append((f"{prefix}{key}", value))
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
    return found


_DEFAULTS = _leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
_EMPTY = [key for key, value in _DEFAULTS if isinstance(value, _MAY_BE_EMPTY) and not value]
_GIVEN = ["resources", "podSecurityContext", "securityContext", "nodeSelector", "topologySpreadConstraints"]
_GIVEN += [f"operator.{key}" for key in _GIVEN] + ["tests.resources", "model.download.resources"]


def test_null_is_the_same_as_empty() -> None:
    assert render(values_of(dict.fromkeys(_EMPTY))) == render()


def test_null_leaves_the_securities_and_resources_out() -> None:
    objects = render(values_of(dict.fromkeys(_GIVEN)))
    assert read(objects, (*OPERATOR_POD, "securityContext")) == ABSENT
    assert read(objects, (*ENGINE_POD, "securityContext")) == ABSENT
    assert read(objects, (*ENGINE_CONTAINER, "resources", "limits")) == ABSENT


@pytest.mark.parametrize(
    "key",
    ["operator", "server", "probes.startup", "server.ports.grpc", "model.source", "replicaCount"],
)
def test_null_for_what_is_needed_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(HelmError, match="values don't meet the specifications") as refusal:
        render(values_of({key: None}))
    assert f"'{key.rpartition('.')[2]}'" in str(refusal.value)
