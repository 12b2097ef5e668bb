"""A value of the chart and what it changes: a place in the rendered objects that reads so with it, and not without.

A place is a kind, a name (without the release's), and the keys and list elements on the way; an element is found by
its name. Of a settings file's text the place goes on inside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from support.helm import RELEASE, Json, Objects

ABSENT = "absent"
FULLNAME = f"{RELEASE}-headstart"

ENGINE = ("Deployment", "engine", "spec")
ENGINE_POD = (*ENGINE, "template", "spec")
ENGINE_CONTAINER = (*ENGINE_POD, "containers", "engine")
ENGINE_SETTINGS = ("ConfigMap", "engine", "data", "headstart.yaml")
OPERATOR = ("Deployment", "operator", "spec")
OPERATOR_POD = (*OPERATOR, "template", "spec")
OPERATOR_CONTAINER = (*OPERATOR_POD, "containers", "operator")
OPERATOR_SETTINGS = ("ConfigMap", "operator", "data", "headstart.yaml")


@dataclass(frozen=True)
class Case:
    """`value` makes `place` read `expected`. `also` are other values that it needs, as dotted keys."""

    value: Any
    place: Sequence[str]
    expected: Any
    also: Mapping[str, Any] = field(default_factory=dict)


def values_of(keys: Mapping[str, Any]) -> Json:
    """Nested values from dotted keys."""
    tree: Json = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def read(objects: Objects, place: Sequence[str]) -> Any:
    """What is there, or ABSENT."""
    kind, name, *path = place
    node: Any = objects.get((kind, f"{FULLNAME}-{name}" if name else FULLNAME), ABSENT)
    if node is ABSENT:
        node = objects.get((kind, name), ABSENT)
    for key in path:
        node = _step(node, key)
    return ABSENT if node is ABSENT else node if path else "present"


def _step(node: Any, key: str) -> Any:
    if isinstance(node, str) and node is not ABSENT:
        node = yaml.safe_load(node)
    if isinstance(node, list):
        if key.isdecimal():
            return node[int(key)] if int(key) < len(node) else ABSENT
        return next((each for each in node if each.get("name") == key), ABSENT)
    return node.get(key, ABSENT) if isinstance(node, dict) else ABSENT


def same(left: Any, right: Any) -> bool:
    """Equal as JSON, true and 1 apart."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
