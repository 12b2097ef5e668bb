"""The EnginePool's definition against what the operator reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from headstart_operator.config import OperatorConfig
from headstart_operator.decision.score import Policy
from headstart_operator.kube.pools import API_VERSION, DEFAULT_PORT, KIND, parse_pool, pools_path
from headstart_operator.kube.status import pool_status
from headstart_operator.pods.survey import PoolSurvey
from headstart_operator.source import open_source

Json = dict[str, Any]

_FILE = Path(__file__).parents[2] / "helm/headstart/crd/enginepool.yaml"
_TYPES = {"object": dict, "array": list, "string": str, "integer": int}


@pytest.fixture(scope="module")
def definition() -> Json:
    loaded: Json = yaml.safe_load(_FILE.read_text())
    return loaded


@pytest.fixture(scope="module")
def schema(definition: Json) -> Json:
    found: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _faults(schema: Json, value: Any, path: str = "") -> Iterator[str]:
    """What is wrong with a value, for the words of the schema that the definition uses."""
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool):
        yield f"{path}: not {schema['type']}"
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{path}.{key}: missing" for key in schema.get("required", ()) if key not in value)
        for key, each in value.items():
            inner = known.get(key) or schema.get("additionalProperties")
            if inner is not None:
                yield from _faults(inner, each, f"{path}.{key}")
            elif known:
                yield f"{path}.{key}: unknown"
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _faults(schema["items"], each, f"{path}[{index}]")
    elif isinstance(value, str):
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path}: {value} is not in the list"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: {value} does not match"
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of range"


def _pool(**spec: Any) -> Json:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat"}, "spec": spec}


def test_it_is_the_resource_that_the_operator_asks_for(definition: Json) -> None:
    spec = definition["spec"]
    names, version = spec["names"], spec["versions"][0]
    assert f"{spec['group']}/{version['name']}" == API_VERSION
    assert (names["kind"], names["shortNames"], spec["scope"]) == (KIND, ["epool"], "Namespaced")
    assert pools_path("ns").endswith(f"/{names['plural']}")
    assert definition["metadata"]["name"] == f"{names['plural']}.{spec['group']}"
    assert version["subresources"] == {"status": {}}
    assert "{{" not in _FILE.read_text()


def test_the_schema_is_structural_and_says_what_may_be_absent(schema: Json) -> None:
    def walk(node: Json) -> Iterator[Json]:
        yield node
        for inner in [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]:
            if inner is not None:
                yield from walk(inner)

    assert all("type" in node for node in walk(schema))
    assert schema["properties"]["spec"]["required"] == ["selector"]


def test_defaults_and_choices_are_the_operators(schema: Json) -> None:
    spec = schema["properties"]["spec"]["properties"]
    assert spec["port"]["default"] == DEFAULT_PORT
    policy = spec["routing"]["properties"]["policy"]
    assert (policy["enum"], policy["default"]) == (list(Policy), Policy.PREFIX)


def test_what_the_schema_allows_in_full_is_read_in_full(schema: Json) -> None:
    limits = dict.fromkeys(schema["properties"]["spec"]["properties"]["limits"]["properties"], 5)
    item = _pool(
        selector={"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
        port=7,
        model="m",
        routing={"policy": "round-robin"},
        limits=limits,
    )
    assert list(_faults(schema, item)) == []
    assert item["spec"].keys() == schema["properties"]["spec"]["properties"].keys()
    pool = parse_pool(item)
    assert (pool.selector, pool.port, pool.model, pool.policy) == ("app=x,a in (b)", 7, "m", Policy.ROUND_ROBIN)
    assert pool.limits is not None
    assert (pool.limits.max_requests, pool.limits.max_tokens, pool.limits.max_requests_per_tenant) == (5, 5, 5)


@pytest.mark.parametrize(
    "survey",
    [
        PoolSurvey(),
        PoolSurvey(num_total=9, num_ready=7, cached_blocks=10**6, hit_ratio=1.0, apart=("a", "b")),
        PoolSurvey(num_total=1, hit_ratio=0.004, out_of_step=("a",)),
    ],
)
@pytest.mark.parametrize("problem", ["", "spec.port: 0 is no number from 1 to 65535"])
def test_every_status_that_is_written_fits_the_schema(schema: Json, survey: PoolSurvey, problem: str) -> None:
    item = _pool(selector={"matchLabels": {"app": "x"}})
    status = pool_status(survey, problem=problem, item=item, now="2030-01-01T00:00:00Z")
    item["status"] = {key: value for key, value in status.items() if value is not None}
    assert list(_faults(schema, item)) == []


async def test_the_default_pool_fits_the_schema(schema: Json) -> None:
    config = OperatorConfig(kube_api="http://127.0.0.1:1", default_pool="chat", selector="app=x")
    source = open_source(config)
    assert source.duties is not None
    default = source.duties.keeper.default
    assert default is not None
    assert list(_faults(schema, _pool(**default.pool.spec))) == []
    await source.close()


def test_the_check_of_this_file_sees_faults(schema: Json) -> None:
    assert list(_faults(schema, _pool(port=0, selectr={}, routing={"policy": "x"}))) == [
        ".spec.selector: missing",
        ".spec.port: 0 is out of range",
        ".spec.selectr: unknown",
        ".spec.routing.policy: x is not in the list",
    ]
