"""What the values under `monitoring` change in what is made for Prometheus and Grafana."""

from __future__ import annotations

import json
import runpy
from typing import Any

import pytest
import yaml
from support.helm import CHART, HelmError, Json, Objects, render
from support.promql import Exported
from support.value_case import FULLNAME, Case, read, same, values_of

_RULE = ("PrometheusRule", "", "spec", "groups", "0", "rules")
_MONITOR = ("PodMonitor", "operator")
_ENDPOINT = (*_MONITOR, "spec", "podMetricsEndpoints", "0")
_BOARD = ("ConfigMap", "dashboard-router", "metadata")
_SCRAPED = {"monitoring.podMonitor.enabled": True}
_ALERTED = {"monitoring.prometheusRule.enabled": True}
_SHOWN = {"monitoring.dashboards.enabled": True}
_CHANGE = [{"action": "labeldrop", "regex": "x"}]
CASES = {
    "monitoring.podMonitor.enabled": Case(True, _MONITOR, "present"),
    "monitoring.podMonitor.interval": Case("7s", (*_ENDPOINT, "interval"), "7s", _SCRAPED),
    "monitoring.podMonitor.scrapeTimeout": Case("3s", (*_ENDPOINT, "scrapeTimeout"), "3s", _SCRAPED),
    "monitoring.podMonitor.labels": Case({"release": "p"}, (*_MONITOR, "metadata", "labels", "release"), "p", _SCRAPED),
    "monitoring.podMonitor.annotations": Case({"a": "b"}, (*_MONITOR, "metadata", "annotations", "a"), "b", _SCRAPED),
    "monitoring.podMonitor.relabelings": Case(_CHANGE, (*_ENDPOINT, "relabelings"), _CHANGE, _SCRAPED),
    "monitoring.podMonitor.metricRelabelings": Case(_CHANGE, (*_ENDPOINT, "metricRelabelings"), _CHANGE, _SCRAPED),
    "monitoring.prometheusRule.enabled": Case(True, ("PrometheusRule", ""), "present"),
    "monitoring.prometheusRule.labels": Case(
        {"release": "p"}, ("PrometheusRule", "", "metadata", "labels", "release"), "p", _ALERTED
    ),
    "monitoring.prometheusRule.annotations": Case(
        {"a": "b"}, ("PrometheusRule", "", "metadata", "annotations", "a"), "b", _ALERTED
    ),
    "monitoring.prometheusRule.engineMatchers": Case(
        'job="engines"', (*_RULE, "1", "expr"), 'up{job="engines"} == 0', _ALERTED
    ),
    "monitoring.prometheusRule.operatorMatchers": Case(
        'job="routers"', (*_RULE, "0", "expr"), 'absent(up{job="routers"} == 1)', _ALERTED
    ),
    "monitoring.dashboards.enabled": Case(True, ("ConfigMap", "dashboard-pods"), "present"),
    "monitoring.dashboards.labels": Case({"seen": "1"}, (*_BOARD, "labels", "seen"), "1", _SHOWN),
    "monitoring.dashboards.annotations": Case({"folder": "LLM"}, (*_BOARD, "annotations", "folder"), "LLM", _SHOWN),
    "monitoring.dashboards.namespace": Case("grafana", (*_BOARD, "namespace"), "grafana", _SHOWN),
}
_TUNED = "monitoring.prometheusRule.alerts."
_ALERTS: list[Json] = yaml.safe_load((CHART / "alerts/alerts.yaml").read_text())


def _rules(values: Json) -> dict[str, Json]:
    """By the alert's name."""
    rules = read(render(values_of({**_ALERTED, **values})), _RULE)
    return {rule["alert"]: rule for rule in rules}


def test_every_value_has_a_case_and_every_case_a_value() -> None:
    scripts = runpy.run_path(str(CHART.parent / "chart_values.py"))
    keys = {value.key for value in scripts["leaves"](scripts["read_values"]())}
    alerts = {_TUNED + alert["key"] for alert in _ALERTS}
    assert {key for key in keys if key.startswith("monitoring.")} == CASES.keys() | alerts


@pytest.mark.parametrize("key", CASES)
def test_a_value_changes_what_it_says(key: str) -> None:
    case = CASES[key]
    with_it = read(render(values_of({**case.also, key: case.value})), case.place)
    assert same(with_it, case.expected), with_it
    assert not same(read(render(values_of(case.also)), case.place), case.expected)


@pytest.mark.parametrize("alert", _ALERTS, ids=lambda alert: alert["key"])
def test_an_alert_is_tuned_and_turned_off_by_its_values(alert: Json) -> None:
    key, name = _TUNED + alert["key"], alert["alert"]
    plain = _rules({})[name]
    assert name not in _rules({f"{key}.enabled": False})
    tuned = _rules({f"{key}.severity": "page", f"{key}.for": "77m"})[name]
    assert (tuned["labels"]["severity"], tuned["for"], tuned["expr"]) == ("page", "77m", plain["expr"])
    has_threshold = "THRESHOLD" in alert["expr"]
    assert (_rules({f"{key}.threshold": 4321.5})[name]["expr"] != plain["expr"]) is has_threshold


@pytest.mark.parametrize("alert", _ALERTS, ids=lambda alert: alert["key"])
def test_an_alert_has_no_word_left_to_fill_in(alert: Json) -> None:
    rule = _rules({})[alert["alert"]]
    assert not {"ENGINE", "OPERATOR", "FRONT", "THRESHOLD"} & set(
        rule["expr"].replace("{", " ").replace(",", " ").split()
    )
    assert "<nil>" not in rule["expr"]
    list(Exported().faults(rule["expr"]))
    assert rule["annotations"] == {"summary": alert["summary"], "description": alert["description"]}


def test_without_a_router_nothing_asks_for_one() -> None:
    text = json.dumps(_rules({"operator.enabled": False}))
    assert "-operator" not in text
    assert "headstart_route" not in text
    objects = render(values_of({**_SCRAPED, "operator.enabled": False}))
    assert read(objects, ("PodMonitor", "engine")) == "present"
    assert read(objects, ("PodMonitor", "operator")) == "absent"


@pytest.mark.parametrize("component", ["engine", "operator"])
def test_alerts_read_what_the_monitors_scrape(component: str) -> None:
    objects = render(values_of({**_SCRAPED, **_ALERTED}))
    monitor = objects["PodMonitor", f"{FULLNAME}-{component}"]["metadata"]
    assert f'job="{monitor["namespace"]}/{monitor["name"]}"' in json.dumps(_rules({})).replace('\\"', '"')
    template = read(objects, ("Deployment", component, "spec", "template"))
    selector = read(objects, ("PodMonitor", component, "spec", "selector", "matchLabels"))
    assert selector.items() <= template["metadata"]["labels"].items()
    (port,) = [each["port"] for each in read(objects, ("PodMonitor", component, "spec", "podMetricsEndpoints"))]
    assert port in {each["name"] for each in template["spec"]["containers"][0]["ports"]}


def test_a_dashboard_arrives_as_it_is() -> None:
    objects: Objects = render(values_of(_SHOWN))
    for path in (CHART / "dashboards").glob("*.json"):
        carried = objects["ConfigMap", f"{FULLNAME}-dashboard-{path.stem}"]["data"]
        assert json.loads(carried[f"headstart-{path.stem}.json"]) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("monitoring.podMonitor.interval", "often"),
        ("monitoring.prometheusRule.alerts.queue", {"treshold": 1}),
        ("monitoring.prometheusRule.alerts.qeue", {}),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(HelmError, match=key.rpartition(".")[2]):
        render(values_of({key: value}))
