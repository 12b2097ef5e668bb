"""Label selectors in both of their forms: the object in a spec, and the text in a query.

A key or value that is no label is refused here, so that none can change what the text means. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")


def selector_text(selector: Mapping[str, Any]) -> str:
    """The query for a LabelSelector. Raises ValueError that names the field; one that selects everything is refused."""
    labels = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not isinstance(expressions, Sequence):
        raise ValueError("not a label selector")
    parts = [f"{_key(key)}={_value(value)}" for key, value in sorted(labels.items())]
    parts += [_expression(each) for each in expressions]
    if not parts:
        raise ValueError("it selects every pod of the namespace; name a label")
    return ",".join(parts)


def match_labels(text: str) -> dict[str, str]:
    """The labels of a query that only says `key=value`, any number of times. Raises ValueError for anything else."""
    labels = {}
    for part in text.split(","):
        key, sign, value = part.partition("=")
        if not sign:
            raise ValueError(f"{part!r} is not key=value")
        labels[_key(key.strip())] = _value(value.removeprefix("=").strip())
    return labels


def _expression(expression: Any) -> str:
    if not isinstance(expression, Mapping):
        raise ValueError("matchExpressions: not an expression")
    key, values = _key(expression.get("key")), [_value(value) for value in expression.get("values") or ()]
    operator = expression.get("operator")
    if operator in ("In", "NotIn"):
        if not values:
            raise ValueError(f"matchExpressions: {operator} needs values")
        return f"{key} {operator.lower()} ({','.join(values)})"
    if operator in ("Exists", "DoesNotExist"):
        if values:
            raise ValueError(f"matchExpressions: {operator} takes no values")
        return key if operator == "Exists" else f"!{key}"
    raise ValueError("matchExpressions: operator must be In, NotIn, Exists or DoesNotExist")


def _key(key: Any) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no label key")
    return key


def _value(value: Any) -> str:
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(f"{value!r} is no label value")
    return value
