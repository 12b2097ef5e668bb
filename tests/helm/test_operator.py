"""What the chart writes into the settings files is what pods and routers read, and its Role what a router needs."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headstart.cli.route import operator_config
from headstart.config import Settings, load_settings
from headstart_operator.app import start_operator
from headstart_operator.config import OperatorConfig
from headstart_operator.kube.pools import parse_pool
from operator_rig import until
from support.helm import CHART, Json, Objects, render
from support.kube_server import DEPLOYMENTS, EVENTS, LEASES, POOLS, KubeServer
from support.value_case import ENGINE_SETTINGS, OPERATOR_SETTINGS, read, values_of

_CASES = sorted((CHART / "ci").glob("*-values.yaml"))
# Needed when somebody else writes at the same time, when an event comes again, and to follow what is listed.
_SOMETIMES = {
    ("get", "enginepools"),
    ("patch", "events"),
    ("watch", "pods"),
    ("watch", "enginepools"),
    ("get", "deployments"),
}


def _settings(objects: Objects, place: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    file = folder / "headstart.yaml"
    file.write_text(read(objects, place))
    monkeypatch.setenv("HEADSTART_CONFIG_FILE", str(file))
    return load_settings({}, secrets_dir=str(folder.parent))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "secrets" / "config"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_every_settings_file_is_read(case: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(None, "--values", case, "--kube-version", "1.37", "--set", "nameOverride=headstart")
    engine = _settings(objects, ENGINE_SETTINGS, folder, monkeypatch)
    assert engine.server.grpc_port == 50051
    if read(objects, OPERATOR_SETTINGS) != "absent":
        config = operator_config(_settings(objects, OPERATOR_SETTINGS, folder, monkeypatch))
        assert config.default_pool == "rel-headstart"
        assert config.lease == config.default_pool_owner == "rel-headstart-operator"


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.stem)
def test_every_container_is_started_with_arguments_that_its_command_takes(case: Path) -> None:
    commands = set()
    for container in _containers(render(None, "--values", case, "--kube-version", "1.37")):
        command, *arguments = container["args"]
        commands.add(command)
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"headstart.cli.{command}").configure(parser)
        parser.parse_args(arguments)
    assert {"serve", "generate"} <= commands


def _containers(objects: Objects) -> Iterator[Json]:
    """Those of the chart itself."""
    for (kind, _), item in objects.items():
        spec = (
            item["spec"]
            if kind == "Pod"
            else item["spec"]["template"]["spec"]
            if kind in ("Deployment", "StatefulSet")
            else {}
        )
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            if "headstart/" in container["image"]:
                yield container


def test_large_numbers_and_sizes_arrive_as_they_were_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_queued_tokens": 16_000_000, "max_prompt_bytes": "2MiB"}
    objects = render(values_of({"engine.limits": limits, "operator.settings.max_queued_tokens": 123_456_789}))
    engine = _settings(objects, ENGINE_SETTINGS, folder, monkeypatch)
    assert (engine.limits.max_queued_tokens, engine.limits.max_prompt_bytes) == (16_000_000, 2 << 20)
    config = operator_config(_settings(objects, OPERATOR_SETTINGS, folder, monkeypatch))
    assert config.queue_limits.max_tokens == 123_456_789
    assert config.max_prompt_bytes == 2 << 20


def test_the_router_comes_in_at_pods_that_the_same_values_have_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(None, "--values", CHART / "ci" / "auth-values.yaml")
    engine = _settings(objects, ENGINE_SETTINGS, folder, monkeypatch)
    config = operator_config(_settings(objects, OPERATOR_SETTINGS, folder, monkeypatch))
    assert engine.server.tls.client_ca_file
    assert engine.server.auth.admin_tenants == "operator,ops"
    access = config.pod_access
    assert (access.ca_file, access.cert_file) == ("/run/headstart/pod-tls/ca.crt", "/run/headstart/tls/tls.crt")
    assert access.server_name == "rel-headstart-engine.ns.svc"


def _rights(objects: Objects) -> set[tuple[str, str]]:
    rules = objects["Role", "rel-headstart-operator"]["rules"]
    return {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


async def _run_router(config: OperatorConfig, server: KubeServer) -> None:
    """Until it has made its pool, told of it, written its status, and taken back what differs from its settings."""
    operator = await start_operator(config)
    try:
        await until(lambda: (_pool(server) or {}).get("status") and server.collections.get(EVENTS))
        made = _pool(server)
        server.put(POOLS, {**made, "spec": {**made["spec"], "port": 7}})
        await until(lambda: _pool(server)["spec"]["port"] != 7)
    finally:
        await operator.stop()


def _pool(server: KubeServer) -> Any:
    return server.find(POOLS, "rel-headstart")


async def test_the_role_is_what_a_router_needs_and_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render()
    config = operator_config(_settings(objects, OPERATOR_SETTINGS, folder, monkeypatch))
    ports = dict.fromkeys(("grpc_port", "health_port", "http_port", "metrics_port"), 0)
    async with KubeServer() as server:
        server.put(DEPLOYMENTS, objects["Deployment", "rel-headstart-operator"])
        await _run_router(replace(config, kube_api=server.url, host="127.0.0.1", **ports), server)
        assert server.verbs() <= _rights(objects)
        assert _rights(objects) - _SOMETIMES <= server.verbs()
        pool = _pool(server)
        assert pool["metadata"]["ownerReferences"][0]["name"] == "rel-headstart-operator"
        assert server.find(LEASES, "rel-headstart-operator")
    # The pool that it made finds this release's engine pods, and itself.
    labels = objects["Deployment", "rel-headstart-engine"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert parse_pool(pool).port == 50051
    wanted = dict(part.split("=") for part in config.pool_selector.split(","))
    assert wanted.items() <= pool["metadata"]["labels"].items()


def test_names_bound_what_the_role_lets_a_router_change() -> None:
    rules = render()["Role", "rel-headstart-operator"]["rules"]
    for rule in rules:
        assert "secrets" not in rule["resources"]
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        if {"get", "update"} & set(rule["verbs"]) and rule["resources"] in (["leases"], ["deployments"]):
            assert rule["resourceNames"] == ["rel-headstart-operator"]
