"""Label selectors: what they become in a query, and what is no selector."""

from __future__ import annotations

from typing import Any

import pytest
from headstart_operator.kube.selector import match_labels, selector_text


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({"matchLabels": {"b": "2", "app.kubernetes.io/name": "engine"}}, "app.kubernetes.io/name=engine,b=2"),
        ({"matchLabels": {"empty": ""}}, "empty="),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}, "a in (x,y)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}, "a notin (x)"),
        (
            {
                "matchLabels": {"c": "d"},
                "matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}],
            },
            "c=d,a,!b",
        ),
    ],
)
def test_a_selector_is_its_terms(selector: dict[str, Any], text: str) -> None:
    assert selector_text(selector) == text


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({}, "every pod"),
        ({"matchLabels": {}}, "every pod"),
        ({"matchLabels": {"a": "b,c=d"}}, "no label value"),
        ({"matchLabels": {"a b": "c"}}, "no label key"),
        ({"matchLabels": {"a": "x" * 64}}, "no label value"),
        ({"matchLabels": {"a": 5}}, "no label value"),
        ({"matchLabels": ["a"]}, "not a label selector"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "In needs values"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}, "takes no values"),
        ({"matchExpressions": [{"key": "a", "operator": "Like", "values": ["x"]}]}, "operator must be"),
        ({"matchExpressions": [7]}, "not an expression"),
    ],
)
def test_what_is_no_selector_is_refused_in_words(selector: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        selector_text(selector)


def test_labels_are_read_from_equalities_only() -> None:
    assert match_labels("a=b, c==d") == {"a": "b", "c": "d"}
    for text in ("", "a", "a in (b)", "!a", "a!=b"):
        with pytest.raises(ValueError, match=r"key=value|label"):
            match_labels(text)
