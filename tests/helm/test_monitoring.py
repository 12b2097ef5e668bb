"""What the chart's dashboards, alerts and autoscaling read, against what running pods and routers export."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml
from headstart import errors
from headstart.contract.proto import inference_pb2 as pb
from operator_rig import Rig, generate, prompt, rig, until
from support.helm import render
from support.promql import TARGET_LABELS, Exported, names, result_labels
from support.value_case import read, values_of

Json = dict[str, Any]

_CHART = Path(__file__).parents[2] / "helm/headstart"
_DASHBOARDS = sorted((_CHART / "dashboards").glob("*.json"))
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")
# Read by people who look into one thing, or told by another metric already.
_SHOWN_NOWHERE = {"target_info"}


@pytest.fixture(scope="module")
def exported() -> Exported:
    """From one pod and one router that have answered, and failed, requests."""
    return asyncio.run(_export())


async def _export() -> Exported:
    async with rig(1, runner__step_seconds=0.005) as r:
        for _ in range(2):
            await generate(r.stub, pb.GenerateRequest(token_ids=prompt(1, 48), max_tokens=4))
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(r.stub, pb.GenerateRequest(token_ids=prompt(2, 48), max_tokens=2000), timeout=0.3)
        signals = (r.pods[0].signals, r.operator.signals)
        await until(lambda: all(b'error_type="' in each.exposition() for each in signals))
        return await _scrape(r)


async def _scrape(r: Rig) -> Exported:
    exported = Exported()
    async with aiohttp.ClientSession() as session:
        for port in (r.pods[0].metrics_port, r.operator.web.metrics_port):
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                exported.add(await answer.text())
    return exported


def _panels(path: Path) -> list[Json]:
    return [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]


def _queries(path: Path) -> Iterator[tuple[str, str, str]]:
    """(panel, expression, legend), with Grafana's interval filled in."""
    for panel in _panels(path):
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m"), target["legendFormat"]


def _alerts() -> list[Json]:
    """As the chart fills them in."""
    text = (_CHART / "alerts/alerts.yaml").read_text()
    for word, matchers in {"ENGINE": "pods", "OPERATOR": "routers", "FRONT": "routers"}.items():
        text = text.replace(word, f'namespace="default", job="default/{matchers}"')
    alerts: list[Json] = yaml.safe_load(text.replace("THRESHOLD", "0.5"))
    return alerts


@pytest.mark.parametrize("path", _DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reads_only_what_is_exported(exported: Exported, path: Path) -> None:
    faults = [f"{title}: {fault}" for title, expr, _ in _queries(path) for fault in exported.faults(expr)]
    assert faults == []


@pytest.mark.parametrize("path", _DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboards_legends_name_labels_of_what_they_stand_for(exported: Exported, path: Path) -> None:
    faults = []
    for title, expr, legend in _queries(path):
        labels = result_labels(expr)
        faults += [(title, label) for label in re.findall(r"{{(\w+)}}", legend) if label not in (labels or set())]
    assert faults == []


@pytest.mark.parametrize("path", _DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboards_choices_come_from_metrics_that_are_exported(exported: Exported, path: Path) -> None:
    variables = [each for each in json.loads(path.read_text())["templating"]["list"] if each["type"] == "query"]
    for variable in variables:
        found = _LABEL_VALUES.fullmatch(variable["query"])
        assert found is not None
        assert list(exported.faults(found["selector"])) == []
        assert found["label"] in TARGET_LABELS
    used = set(re.findall(r"\$(\w+)", " ".join(expr for _, expr, _ in _queries(path))))
    assert used == {variable["name"] for variable in variables}


@pytest.mark.parametrize("path", _DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboards_panels_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_dashboards_can_be_told_apart() -> None:
    ids = [json.loads(path.read_text())["uid"] for path in _DASHBOARDS]
    assert len(set(ids)) == len(ids) == 2


@pytest.mark.parametrize("alert", _alerts(), ids=lambda alert: alert["key"])
def test_an_alert_reads_only_what_is_exported(exported: Exported, alert: Json) -> None:
    assert list(exported.faults(alert["expr"])) == []


@pytest.mark.parametrize("alert", _alerts(), ids=lambda alert: alert["key"])
def test_an_alerts_words_name_labels_that_it_has(alert: Json) -> None:
    labels = result_labels(alert["expr"])
    allowed = TARGET_LABELS if labels is None else labels
    assert set(re.findall(r"\$labels\.(\w+)", alert["summary"] + alert["description"])) <= allowed


def test_alerts_name_errors_that_there_are() -> None:
    kinds = {kind.status for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "status")}
    named = re.search(r'error_type=~"([^"]+)"', (_CHART / "alerts/alerts.yaml").read_text())
    assert named is not None
    assert set(named[1].split("|")) <= kinds


def test_whatever_is_exported_can_be_seen_on_a_dashboard(exported: Exported) -> None:
    shown = {name for path in _DASHBOARDS for _, expr, _ in _queries(path) for name in names(expr)}
    stems = {_stem(name) for name in shown} | _SHOWN_NOWHERE
    assert sorted(name for name in exported.labels if _stem(name) not in stems) == []


def _stem(name: str) -> str:
    """A histogram's name without what Prometheus appends."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("has_router", [True, False])
def test_autoscalers_ask_for_what_is_exported(exported: Exported, has_router: bool) -> None:
    also = {"operator.enabled": has_router}
    adapter = render(values_of({**also, "autoscaling.hpa.enabled": True}))
    (metric,) = read(adapter, ("HorizontalPodAutoscaler", "engine", "spec", "metrics"))
    assert list(exported.faults(metric["pods"]["metric"]["name"])) == []
    address = {"autoscaling.keda.serverAddress": "http://prometheus:9090"}
    keda = render(values_of({**also, **address, "autoscaling.keda.enabled": True}))
    (trigger,) = read(keda, ("ScaledObject", "engine", "spec", "triggers"))
    assert list(exported.faults(trigger["metadata"]["query"])) == []
    assert ("headstart_route_requests" in names(trigger["metadata"]["query"])) is has_router


def test_the_check_of_this_file_sees_faults(exported: Exported) -> None:
    assert list(exported.faults('sum by (colour) (headstart_pods{state="asleep", size="1"}) + headstart_podz')) == [
        "headstart_pods is never exported with state='asleep'",
        "headstart_pods has no label size",
        "nobody exports headstart_podz",
        "no metric of it has the label colour",
    ]
    with pytest.raises(ValueError, match="expected type matrix"):
        list(exported.faults("rate(headstart_pods)"))
