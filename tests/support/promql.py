"""What a PromQL expression reads: for comparing dashboards and alerts with the metrics that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

# What Prometheus itself adds to each sample of a pod that it scrapes.
TARGET_LABELS = frozenset({"namespace", "job", "pod", "instance", "container", "endpoint"})
# What it makes of each scrape.
SYNTHETIC = "up"


@dataclass(slots=True)
class Exported:
    """Samples by name, and of each the values that its labels had."""

    labels: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def add(self, exposition: str) -> None:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                known = self.labels.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    known.setdefault(label, set()).add(value)

    def faults(self, expression: str) -> Iterator[str]:
        """Why the expression does not read what is exported. Raises ValueError when it is no PromQL."""
        nodes = _nodes(expression)
        selectors = [node for node in nodes if isinstance(node, promql.VectorSelector)]
        if not selectors:
            yield "reads no metric"
        for selector in selectors:
            yield from self._selector_faults(selector)
        readable = TARGET_LABELS.union(*(self.labels.get(str(selector.name), {}) for selector in selectors))
        for label in _grouping(nodes):
            if label not in readable:
                yield f"no metric of it has the label {label}"

    def _selector_faults(self, selector: promql.VectorSelector) -> Iterator[str]:
        name = str(selector.name)
        if name not in self.labels and name != SYNTHETIC:
            yield f"nobody exports {name}"
            return
        known: Mapping[str, set[str]] = self.labels.get(name, {})
        for matcher in selector.matchers.matchers:
            if matcher.name in TARGET_LABELS:
                continue
            if matcher.name not in known:
                yield f"{name} has no label {matcher.name}"
            elif matcher.op == promql.MatchOp.Equal and matcher.value not in known[matcher.name]:
                yield f"{name} is never exported with {matcher.name}={matcher.value!r}"


def names(expression: str) -> set[str]:
    """The metrics that it reads."""
    return {str(node.name) for node in _nodes(expression) if isinstance(node, promql.VectorSelector)}


def result_labels(expression: str) -> set[str] | None:
    """Labels that the result has at most, when an aggregation says so; None when it is open."""
    kept = [
        set(node.modifier.labels) if node.modifier else set()
        for node in _nodes(expression)
        if isinstance(node, promql.AggregateExpr)
    ]
    return set.union(*kept) if kept else None


def _nodes(expression: str) -> list[promql.Expr]:
    found: list[promql.Expr] = []
    promql.walk(promql.parse(expression), found.append)
    return found


def _grouping(nodes: list[promql.Expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            yield from node.modifier.labels
        if isinstance(node, promql.BinaryExpr) and node.modifier:
            matching = node.modifier.matching
            yield from [*(matching.labels if matching else ()), *(node.modifier.group_labels or ())]
