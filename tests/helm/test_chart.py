"""What the chart installs, as a whole: what fits together, what is safe, and what two releases never share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.helm import CHART, Json, Objects, documents, render, run_helm
from support.value_case import ENGINE, ENGINE_POD, OPERATOR_POD, read, values_of

_CASES = sorted((CHART / "ci").glob("*-values.yaml"))
_WORKLOADS = ("Deployment", "StatefulSet")
# Containers that a case brings itself, and answers for.
_FOREIGN = {"first", "beside"}


def _of_case(case: Path) -> Objects:
    return render(None, "--values", case, "--kube-version", "1.37")


def _templates(objects: Objects) -> Iterator[tuple[str, Json]]:
    """The pod templates, by component; of hooks too."""
    for (kind, _), item in objects.items():
        template = item if kind == "Pod" else item["spec"]["template"] if kind in _WORKLOADS else None
        if template is not None:
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def _own_containers(template: Json) -> list[Json]:
    found = [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
    return [each for each in found if each["name"] not in _FOREIGN]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_every_pod_keeps_to_restricted_security(case: Path) -> None:
    for component, template in _templates(_of_case(case)):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "runAsUser" not in spec["securityContext"]
        assert not spec["enableServiceLinks"]
        assert spec["automountServiceAccountToken"] == (component == "operator")
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not [each for each in spec.get("volumes", ()) if "hostPath" in each]
        for container in _own_containers(template):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert re.search(r"(:|@sha256:)[^:]+$", container["image"])
            assert not container["image"].endswith(":latest")


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_every_selector_finds_the_pods_of_one_component_and_no_others(case: Path) -> None:
    objects = _of_case(case)
    pods = [template["metadata"]["labels"] for _, template in _templates(objects)]
    selectors = [
        read(objects, (kind, name, "spec", "selector", "matchLabels")) for kind, name in objects if kind in _WORKLOADS
    ]
    for (kind, _), item in objects.items():
        if kind == "Service":
            selectors.append(item["spec"]["selector"])
        elif kind == "PodDisruptionBudget":
            selectors.append(item["spec"]["selector"]["matchLabels"])
        elif kind == "NetworkPolicy":
            selectors.append(item["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert [name.rpartition("/")[2] for name in sorted(selector)] == ["component", "instance", "name"]
        assert sum(selector.items() <= labels.items() for labels in pods) == 1


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_every_object_says_whose_it_is_and_is_where_the_release_is(case: Path) -> None:
    namespace = "inference" if case.stem.startswith("everything") else "ns"
    for (kind, name), item in _of_case(case).items():
        assert len(name) <= 63
        if "app.kubernetes.io/component" not in item["metadata"].get("labels", {}):
            assert name in ("rel-more", "rel-text")  # extraObjects are taken as they are
            continue
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "headstart"
        is_clusters = kind.startswith("Cluster") or kind == "CustomResourceDefinition"
        assert item["metadata"].get("namespace") == (None if is_clusters else namespace)


def test_names_leave_room_for_what_the_cluster_adds() -> None:
    long = "a" * 53
    text = run_helm(
        "template", long, CHART, "--set", "model.source.type=hf,model.source.uri=a/b,model.persistence.enabled=true"
    )
    for item in documents(text):
        assert len(item["metadata"]["name"]) <= 52, item["metadata"]["name"]


def test_a_release_that_is_named_like_the_chart_is_not_named_twice() -> None:
    names = {item["metadata"]["name"] for item in documents(run_helm("template", "headstart", CHART))}
    assert "headstart-engine" in names
    assert not [name for name in names if "headstart-headstart" in name]


def test_the_volumes_of_a_container_are_those_of_its_pod() -> None:
    for case in _CASES:
        for _, template in _templates(_of_case(case)):
            volumes = [each["name"] for each in template["spec"].get("volumes", ())]
            assert len(volumes) == len(set(volumes))
            # A claim of each replica is named by the StatefulSet.
            names = {*volumes, "model"}
            mounts = [mount for each in _own_containers(template) for mount in each.get("volumeMounts", ())]
            assert {mount["name"] for mount in mounts} <= names
            for each in _own_containers(template):
                variables = [variable["name"] for variable in each.get("env", ())]
                assert len(variables) == len(set(variables))


def test_pods_are_probed_by_grpc_for_as_long_as_a_large_model_may_load() -> None:
    (container,) = read(render(), (*ENGINE_POD, "containers"))
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800
    for name in ("startup", "liveness", "readiness"):
        assert container[f"{name}Probe"]["grpc"] == {"port": 50052, "service": name}


def test_old_pods_go_first_where_new_ones_would_wait_for_what_they_hold() -> None:
    gpu = {"accelerator.type": "nvidia", "accelerator.count": 1}
    claim = {"model.source.type": "hf", "model.source.uri": "a/b", "model.persistence.enabled": True}
    place = (*ENGINE, "strategy", "rollingUpdate")
    assert read(render(values_of(gpu)), place) == {"maxSurge": 0, "maxUnavailable": 1}
    assert read(render(values_of(claim)), place) == {"maxSurge": 0, "maxUnavailable": 1}
    shared = values_of({**claim, "model.persistence.accessModes": ["ReadWriteMany"]})
    assert read(render(shared), place) == {"maxSurge": 1, "maxUnavailable": 0}
    assert read(render(), place) == {"maxSurge": 1, "maxUnavailable": 0}


def test_pods_are_replaced_when_their_settings_change_and_not_when_others_do() -> None:
    mark = ("spec", "template", "metadata", "annotations", "checksum/config")

    def marks(**keys: Any) -> tuple[str, str]:
        objects = render(values_of({key.replace("__", "."): value for key, value in keys.items()}))
        return read(objects, ("Deployment", "engine", *mark)), read(objects, ("Deployment", "operator", *mark))

    engine, operator = marks()
    assert marks(engine={"scheduler": {"max_num_seqs": 3}}) == (
        marks(engine={"scheduler": {"max_num_seqs": 3}})[0],
        operator,
    )
    assert marks(engine={"scheduler": {"max_num_seqs": 3}})[0] != engine
    assert marks(operator__settings={"policy": "round-robin"})[0] == engine
    assert marks(operator__settings={"policy": "round-robin"})[1] != operator
    assert marks(replicaCount=4) == (engine, operator)


def test_without_a_router_nothing_of_it_is_left_and_clients_reach_the_pods() -> None:
    objects = render({"operator": {"enabled": False}})
    assert not [name for _, name in objects if "operator" in name or "enginepools" in name]
    assert read(objects, ("Service", "", "spec", "selector", "app.kubernetes.io/component")) == "engine"
    (front, *_) = read(objects, ("NetworkPolicy", "engine", "spec", "ingress"))
    assert {each["port"] for each in front["ports"]} == {50051, 8000}


def test_an_engine_with_its_model_in_the_image_may_call_nobody() -> None:
    assert read(render(), ("NetworkPolicy", "engine", "spec", "egress")) == []
    assert read(render(), ("NetworkPolicy", "engine", "spec", "policyTypes")) == ["Ingress", "Egress"]


@pytest.mark.parametrize(
    ("endpoint", "protocol", "ports"),
    [
        ("http://c.m:9999/x", "grpc", [9999]),
        ("https://[fd00::1]:4317", "grpc", [4317]),
        ("http://[fd00::1]", "http/protobuf", [80]),
        ("https://c", "http/protobuf", [443]),
        ("http://c", "grpc", [443]),
        ("http://c:55", "grpc", [55]),
    ],
)
def test_the_collector_s_port_is_open_to_pods_and_router(endpoint: str, protocol: str, ports: list[int]) -> None:
    keys = {"telemetry.otlp.endpoint": endpoint, "telemetry.otlp.protocol": protocol, "telemetry.traces.enabled": True}
    objects = render(values_of(keys))
    for component, place in (("engine", 0), ("operator", 2)):
        rule = read(objects, ("NetworkPolicy", component, "spec", "egress"))[place]
        assert [each["port"] for each in rule["ports"]] == ports
    again = render(values_of(keys | {"networkPolicy.otlp.ports": [1, ports[0]]}))
    (rule, *_) = read(again, ("NetworkPolicy", "engine", "spec", "egress"))
    assert [each["port"] for each in rule["ports"]] == [*ports, 1]


def test_only_the_router_and_pods_with_the_label_reach_an_engine() -> None:
    router, labelled, scrape = read(render(), ("NetworkPolicy", "engine", "spec", "ingress"))
    assert router["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert labelled["from"] == [{"podSelector": {"matchLabels": {"headstart.dev/engine-client": "true"}}}]
    assert scrape["ports"] == [{"port": 9090, "protocol": "TCP"}]


def test_two_releases_find_neither_each_others_pools_nor_pods() -> None:
    found = []
    for release in ("one", "two"):
        config = next(
            yaml.safe_load(item["data"]["headstart.yaml"])["operator"]
            for item in documents(run_helm("template", release, CHART))
            if item["kind"] == "ConfigMap" and item["metadata"]["name"].endswith("-operator")
        )
        found.append({key: config[key] for key in ("pool_selector", "selector", "lease", "default_pool")})
    assert not set(found[0].values()) & set(found[1].values())


def test_a_secret_is_mounted_as_a_file_and_never_written_into_a_config_map_or_a_variable() -> None:
    case = CHART / "ci" / "everything-values.yaml"
    objects = _of_case(case)
    assert not [name for kind, name in objects if kind == "Secret"]
    for _, template in _templates(objects):
        for container in _own_containers(template):
            named = [each["name"] for each in container.get("env", ()) if "secretKeyRef" in each.get("valueFrom", {})]
            # OpenTelemetry's exporters read headers from nowhere else.
            assert set(named) <= {"OTEL_EXPORTER_OTLP_HEADERS"}


def test_the_definition_is_the_file_with_labels_and_kept() -> None:
    said = yaml.safe_load((CHART / "crd" / "enginepool.yaml").read_text())
    made = dict(render()["CustomResourceDefinition", "enginepools.headstart.dev"])
    assert made["spec"] == said["spec"]
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_claim_is_writable_for_the_image_s_user() -> None:
    kept = {"model.source.type": "hf", "model.source.uri": "a/b", "model.persistence.enabled": True}
    place = (*ENGINE_POD, "securityContext", "fsGroup")
    assert read(render(values_of(kept)), place) == 65532
    assert read(render(values_of({**kept, "podSecurityContext.fsGroup": 7})), place) == 7
    assert "fsGroup" not in read(render(), (*OPERATOR_POD, "securityContext"))


def test_threads_follow_a_cpu_limit() -> None:
    limited = render(values_of({"resources.limits.cpu": "3"}))
    place = (
        *ENGINE_POD,
        "containers",
        "engine",
        "env",
        "HEADSTART_THREADS",
        "valueFrom",
        "resourceFieldRef",
        "resource",
    )
    assert read(limited, place) == "limits.cpu"
    assert read(render(), place) == "absent"


def test_its_version_is_the_package_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == version("headstart")


def test_it_can_be_part_of_another_chart(tmp_path: Path) -> None:
    dependency = {"name": "headstart", "version": version("headstart"), "condition": "llm.enabled"}
    parent = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    values = {
        "global": {"other": 1, "imageRegistry": "r.example"},
        "llm": {"enabled": True},
        "headstart": {"replicaCount": 3},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "headstart").symlink_to(CHART)
    objects = {
        (each["kind"], each["metadata"]["name"]): each for each in documents(run_helm("template", "rel", tmp_path))
    }
    assert read(objects, (*ENGINE, "replicas")) == 3
    assert read(objects, (*ENGINE_POD, "containers", "engine", "image")).startswith("r.example/")


def test_labels_of_people_s_own_never_take_the_place_of_the_chart_s() -> None:
    mine = {"app.kubernetes.io/instance": "x", "team": "a"}
    objects = render({"commonLabels": mine, "service": {"labels": mine}})
    for labels in (
        read(objects, (*ENGINE, "template", "metadata", "labels")),
        read(objects, ("Service", "", "metadata", "labels")),
    ):
        assert (labels["app.kubernetes.io/instance"], labels["team"]) == ("rel", "a")


def test_pods_spread_without_counting_those_that_a_rollout_replaces() -> None:
    hub = {"model.source.type": "hf", "model.source.uri": "org/name"}
    kept = hub | {"model.persistence.enabled": True, "model.persistence.perReplica": True}
    for place, keys in ((ENGINE_POD, {}), (OPERATOR_POD, {}), (("StatefulSet", *ENGINE_POD[1:]), kept)):
        (spread,) = read(render(values_of(keys)), (*place, "topologySpreadConstraints"))
        assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == place[1]
        assert spread.get("matchLabelKeys") == (None if keys else ["pod-template-hash"])
