"""Writes values.schema.json from the comments of values.yaml and from the settings of pods and router.

With --check it writes nothing and fails when the file would change. No object takes keys that nobody has described, but
for `global`, which a chart around this one shares, and for objects of Kubernetes' own API, which checks them itself.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from chart_values import CHART, Json, Value, read_values
from headstart.config import Settings

SCHEMA = CHART / "values.schema.json"

# Sections of the settings tree that have values of their own in the chart.
_NOT_ENGINE = frozenset({"model", "server", "telemetry", "operator"})
# What the chart says itself; a secret does not belong into a ConfigMap.
_NOT_OPERATOR = frozenset(
    {"endpoints", "namespace", "selector", "pool_selector", "default_pool", "default_pool_owner", "lease"}
    | {"pod_port", "kube_api", "pod_key", "pod_tls"}
)
_KEPT_WORDS = frozenset(
    {"type", "enum", "const", "description", "properties", "additionalProperties", "anyOf", "pattern", "items"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
)

_STRING: Json = {"type": "string"}
_NAME: Json = {"type": "string", "minLength": 1}
_NAMES: Json = {"type": "array", "items": _NAME}
_OPEN: Json = {"type": "object"}


def _closed(required: tuple[str, ...] = (), **properties: Json) -> Json:
    found: Json = {"type": "object", "additionalProperties": False, "properties": properties}
    return found | ({"required": list(required)} if required else {})


_IP_BLOCK: Json = _closed(("cidr",), cidr=_NAME, **{"except": _NAMES})
_POSITIVE: Json = {"type": "integer", "minimum": 1}
_QUANTITY: Json = {
    "type": ["string", "number"],
    "pattern": r"^$|^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]+)?$",
    "minimum": 0,
}
# Empty where the chart has a name of its own, or does without.
_OBJECT_NAME: Json = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$",
}
_DATA_KEY: Json = {"type": "string", "maxLength": 253, "pattern": "^[-._a-zA-Z0-9]+$"}
_DURATION: Json = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}
_QUANTITIES: Json = {"type": "object", "additionalProperties": {"$ref": "#/definitions/quantity"}}

_DEFINITIONS: Json = {
    "strings": {"type": "object", "additionalProperties": _STRING},
    "kubernetes": {"description": "As in Kubernetes' API, which checks it.", **_OPEN},
    "objectName": _OBJECT_NAME,
    "dataKey": _DATA_KEY,
    "dataKeyOrNone": _DATA_KEY | {"pattern": "^[-._a-zA-Z0-9]*$"},
    "imageRepository": {"type": "string", "pattern": "^([a-z0-9]([-._a-z0-9:/]*[a-z0-9])?)?$"},
    "imageTag": {"type": "string", "pattern": "^([a-zA-Z0-9_][-._a-zA-Z0-9]{0,127})?$"},
    "quantity": _QUANTITY,
    "resources": _closed(limits=_QUANTITIES, requests=_QUANTITIES),
    "countOrPercent": {"type": ["integer", "string", "null"], "minimum": 0, "pattern": "^(100|[0-9]{1,2})%$"},
    "probe": _closed(
        ("periodSeconds", "timeoutSeconds", "failureThreshold"),
        initialDelaySeconds={"type": "integer", "minimum": 0},
        periodSeconds=_POSITIVE,
        timeoutSeconds=_POSITIVE,
        failureThreshold=_POSITIVE,
        successThreshold=_POSITIVE,
        terminationGracePeriodSeconds=_POSITIVE,
    ),
    "localReference": _closed(("name",), name=_NAME),
    "toleration": _closed(
        key=_STRING,
        operator={"enum": ["Exists", "Equal"]},
        value=_STRING,
        effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        tolerationSeconds={"type": "integer"},
    ),
    "env": _closed(("name",), name=_NAME, value=_STRING, valueFrom=_OPEN),
    "volume": {**_OPEN, "required": ["name"], "properties": {"name": _NAME}},
    "volumeMount": _closed(
        ("name", "mountPath"),
        name=_NAME,
        mountPath={"type": "string", "pattern": "^/"},
        readOnly={"type": "boolean"},
        recursiveReadOnly={"enum": ["Disabled", "IfPossible", "Enabled"]},
        subPath=_STRING,
        subPathExpr=_STRING,
        mountPropagation={"enum": ["None", "HostToContainer", "Bidirectional"]},
    ),
    "container": {**_OPEN, "required": ["name", "image"], "properties": {"name": _NAME, "image": _NAME}},
    "duration": _DURATION,
    "alert": _closed(
        enabled={"type": "boolean"},
        severity=_NAME,
        threshold={"type": "number", "minimum": 0},
        **{"for": _DURATION},
    ),
    "peer": _closed(podSelector=_OPEN, namespaceSelector=_OPEN, ipBlock=_IP_BLOCK) | {"minProperties": 1},
    "hostAlias": _closed(("ip",), ip=_NAME, hostnames=_NAMES),
    "spread": _closed(
        ("maxSkew", "topologyKey", "whenUnsatisfiable"),
        maxSkew=_POSITIVE,
        topologyKey=_NAME,
        whenUnsatisfiable={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
        labelSelector=_OPEN,
        matchLabelKeys=_NAMES,
        minDomains=_POSITIVE,
        nodeAffinityPolicy={"enum": ["Honor", "Ignore"]},
        nodeTaintsPolicy={"enum": ["Honor", "Ignore"]},
    ),
    "metric": _closed(
        ("type",), type=_NAME, resource=_OPEN, containerResource=_OPEN, pods=_OPEN, object=_OPEN, external=_OPEN
    ),
    "manifest": {"type": ["object", "string"], "required": ["kind"], "pattern": r"kind:|\{\{"},
}


def generate() -> str:
    """The text of the file."""
    settings = Settings.model_json_schema()
    tree = _resolved(settings, settings["$defs"])
    engine = _without(tree, _NOT_ENGINE)
    engine["properties"]["cache"] = _without(engine["properties"]["cache"], frozenset({"hash_seed"}))
    operator = _without(tree["properties"]["operator"], _NOT_OPERATOR)
    definitions = {**_DEFINITIONS, "engine": engine, "operator": operator}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart headstart. Generated: make chart",
        **_object(read_values()),
        "definitions": definitions,
    }
    text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    unknown = set(re.findall(r'"#/definitions/(\w+)"', text)) - definitions.keys()
    if unknown:
        raise ValueError(f"values.yaml: no definition is named {', '.join(sorted(unknown))}")
    return text


def _object(values: tuple[Value, ...]) -> Json:
    properties = {value.path[-1]: _of_value(value) for value in values}
    required = tuple(value.path[-1] for value in values if _is_needed(value))
    return _closed(required, **properties)


def _is_needed(value: Value) -> bool:
    """Whether null, by which helm takes a default away, is an error. It is "nothing" where something may be empty."""
    if value.children:
        return True
    if value.schema.get("$ref", "") == "#/definitions/probe":
        return True
    return isinstance(value.default, (bool, int, float)) or (isinstance(value.default, str) and value.default != "")


def _of_value(value: Value) -> Json:
    """A reference stands alone in its own schema: words beside one mean nothing in this draft."""
    said: Json = {"description": value.description}
    if "$ref" in value.schema:
        return {**said, "allOf": [value.schema]}
    if value.children:
        return {**said, **_object(value.children), **value.schema}
    if "type" in value.schema:
        return {**said, **value.schema}
    if "enum" in value.schema and isinstance(value.default, str):
        return {**said, "type": "string", **value.schema}
    return {**said, "type": _type(value), **value.schema}


def _type(value: Value) -> str:
    """Raises ValueError when the default does not tell."""
    for kind, word in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value.default, kind):
            return word
    raise ValueError(f"values.yaml: {value.key}: its default does not tell its type; say it in a line @schema")


def _resolved(node: Any, definitions: Json) -> Any:
    """The schema without references, and without what only pydantic and our flags know."""
    if isinstance(node, list):
        return [_resolved(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _resolved(definitions[node["$ref"].rpartition("/")[2]], definitions)
    found = {}
    for key, each in node.items():
        if key == "properties":
            found[key] = {name: _resolved(inner, definitions) for name, inner in each.items()}
        elif key in _KEPT_WORDS:
            found[key] = _resolved(each, definitions)
    return found


def _without(node: Json, names: frozenset[str]) -> Json:
    missing = names - node["properties"].keys()
    if missing:
        raise ValueError(f"generate_schema.py: the settings have no {', '.join(sorted(missing))}")
    properties = {name: each for name, each in node["properties"].items() if name not in names}
    return {**node, "properties": properties}


def main(arguments: list[str]) -> int:
    text = generate()
    if "--check" in arguments:
        if SCHEMA.is_file() and SCHEMA.read_text(encoding="utf-8") == text:
            return 0
        print(f"{SCHEMA.name} is not what values.yaml and the settings give: make chart", file=sys.stderr)
        return 1
    SCHEMA.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
