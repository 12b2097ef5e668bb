"""The schema of the chart's values is made from their comments, and nothing in it is left to chance."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.helm import CHART, Json

_SCRIPTS = Path(__file__).parents[2] / "helm"


@pytest.fixture(scope="module")
def schema() -> Json:
    loaded: Json = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def _read(folder: Path, values: str) -> subprocess.CompletedProcess[str]:
    """The keys of a values file of its own, as the scripts read them."""
    (folder / "values.yaml").write_text(values)
    code = f"""
import sys; sys.path.insert(0, {str(_SCRIPTS)!r})
from pathlib import Path
from chart_values import leaves, read_values
for each in leaves(read_values(Path({str(folder / "values.yaml")!r}))):
    print(each.key, each.default, each.description, each.schema, sep="|")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def _objects(node: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(node, dict):
        if "properties" in node and isinstance(node["properties"], dict):
            yield path, node
        for key, each in node.items():
            yield from _objects(each, f"{path}/{key}")
    elif isinstance(node, list):
        for index, each in enumerate(node):
            yield from _objects(each, f"{path}/{index}")


def test_a_comment_is_a_description_and_adds_to_the_schema(tmp_path: Path) -> None:
    done = _read(tmp_path, '# About a.\na:\n  # Two\n  # lines.\n  # @schema {"minimum": 1}\n  b: 2\n')
    assert done.stdout == "a.b|2|Two lines.|{'minimum': 1}\n"


def test_a_key_that_nobody_has_described_is_an_error_with_its_line(tmp_path: Path) -> None:
    done = _read(tmp_path, "# About a.\na: 1\n\nb: 2\n")
    assert "values.yaml, line 4: b has no comment" in done.stderr


def test_what_a_definition_describes_is_one_value(tmp_path: Path) -> None:
    done = _read(tmp_path, '# About a.\n# @schema {"$ref": "#/definitions/x"}\na: {b: 1}\n')
    assert done.stdout.startswith("a|{'b': 1}|")


def test_every_object_takes_no_other_keys_but_what_kubernetes_or_a_chart_around_it_checks(schema: Json) -> None:
    open_ones = {path for path, each in _objects(schema) if each.get("additionalProperties") is not False}
    assert open_ones == {"/properties/global", "/definitions/volume", "/definitions/container"}


def test_every_value_says_what_it_is(schema: Json) -> None:
    for _, each in _objects({"properties": schema["properties"]}):
        for key, value in each["properties"].items():
            assert value.get("description"), key


def test_engine_and_router_have_no_settings_that_the_chart_or_a_secret_gives(schema: Json) -> None:
    engine, operator = (schema["definitions"][name]["properties"] for name in ("engine", "operator"))
    assert not {"model", "server", "telemetry", "operator"} & engine.keys()
    assert "hash_seed" not in engine["cache"]["properties"]
    assert operator.keys() == {"policy", "max_queued_requests", "max_queued_tokens", "max_queued_per_tenant"}
    assert "flag" not in json.dumps(schema)
