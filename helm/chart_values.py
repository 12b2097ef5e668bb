"""Reads values.yaml with its comments: each key's description and what a line "@schema" says of its JSON schema.

Knows nothing of what becomes of them. Holds no state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

CHART = Path(__file__).parent / "headstart"
VALUES = CHART / "values.yaml"

_MARK = "@schema "


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One documented key. `path` is the keys that lead to it; `schema` is what the comment adds.

    `children` are the keys below; none when the comment refers to a definition that says what is below.
    """

    path: tuple[str, ...]
    default: Any
    description: str
    schema: Json
    children: tuple[Value, ...] = ()

    @property
    def key(self) -> str:
        return ".".join(self.path)


def read_values(file: Path = VALUES) -> tuple[Value, ...]:
    """The keys of the first level. Raises ValueError for one without a description."""
    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{file}: expected keys and values")
    return _children(root, text.splitlines(), ())


def leaves(values: tuple[Value, ...]) -> Iterator[Value]:
    """The values that have no keys of their own below."""
    for value in values:
        if value.children:
            yield from leaves(value.children)
        else:
            yield value


def _children(node: yaml.MappingNode, lines: list[str], path: tuple[str, ...]) -> tuple[Value, ...]:
    return tuple(_value(key, value, lines, (*path, key.value)) for key, value in node.value)


def _value(key: yaml.ScalarNode, node: yaml.Node, lines: list[str], path: tuple[str, ...]) -> Value:
    description, schema = _comment(lines, key.start_mark.line)
    if not description:
        raise ValueError(
            f"values.yaml, line {key.start_mark.line + 1}: {'.'.join(path)} has no comment that describes it"
        )
    children: tuple[Value, ...] = ()
    if isinstance(node, yaml.MappingNode) and "$ref" not in schema:
        children = _children(node, lines, path)
    return Value(
        path=path,
        default=yaml.SafeLoader("").construct_document(node),
        description=description,
        schema=schema,
        children=children,
    )


def _comment(lines: list[str], index: int) -> tuple[str, Json]:
    """Of the comment that stands right above the line: its text, and what it adds to the schema."""
    first = index
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    said = [line.lstrip().removeprefix("#").strip() for line in lines[first:index]]
    words = [line for line in said if not line.startswith(_MARK)]
    schema: Json = {}
    for line in said:
        if line.startswith(_MARK):
            schema |= json.loads(line.removeprefix(_MARK))
    return " ".join(words), schema
