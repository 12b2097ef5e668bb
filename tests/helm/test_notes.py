"""What the chart says after an installation: commands that work for the values that were chosen."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from headstart.cli import generate
from support.helm import CHART, NAMESPACE, RELEASE, Objects, render, run_helm

_TLS = {"tls": {"enabled": True, "existingSecret": "cert", "clientCAKey": "clients.crt"}}
_AUTH = {"auth": {"existingSecret": "keys", "routerTenant": "the.router"}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no router": {"operator": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "locked": {"server": {**_TLS, **_AUTH}},
    "locked, no router": {"server": {**_TLS, **_AUTH}, "operator": {"enabled": False}},
    "hub": {"model": {"source": {"type": "hf", "uri": "org/name"}}},
    "others": {
        "fullnameOverride": "llm",
        "service": {"type": "NodePort", "ports": {"grpc": 80, "http": 81}},
        "engine": {"cache": {"enable_prefix_caching": False, "block_size": 64}},
        "networkPolicy": {"clients": [{"podSelector": {}}]},
    },
}


def _notes(values: dict[str, Any], tmp_path: Path) -> str:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    # Only helm 4 renders notes without a cluster.
    printed = run_helm("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client", "--values", file)
    return printed.partition("\nNOTES:\n")[2]


def _commands(notes: str, program: str) -> list[list[str]]:
    """With what it is given, continued lines joined."""
    lines = notes.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip().startswith(program + " ")]


def _check_kubectl(words: list[str], objects: Objects) -> None:
    """That what it names exists."""
    assert words[1] == "-n"
    for word in words:
        if found := re.fullmatch(r"(deployment|statefulset|service)/([\w-]+)", word):
            kind = {"deployment": "Deployment", "statefulset": "StatefulSet", "service": "Service"}[found[1]]
            assert objects[kind, found[2]]["metadata"]["namespace"] == words[2]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_every_command_names_what_the_values_make(values: dict[str, Any], tmp_path: Path) -> None:
    notes, objects = _notes(values, tmp_path), render(values)
    kubectl = _commands(notes, "kubectl")
    assert len(kubectl) >= 2
    for words in kubectl:
        _check_kubectl(words, objects)
    (forward,) = [words for words in kubectl if "port-forward" in words]
    name = next(word for word in forward if word.startswith("service/")).partition("/")[2]
    ports = {str(port["port"]) for port in objects["Service", name]["spec"]["ports"]}
    pairs = dict(reversed(pair.split(":")) for pair in forward[-2:])
    assert pairs.keys() == ports
    assert min(map(int, pairs.values())) >= 1024
    (call,) = _commands(notes, "headstart")
    assert call[call.index("--endpoint") + 1].split(":")[1] in pairs.values()
    (request,) = _commands(notes, "curl")
    assert any(re.search(rf"localhost:({'|'.join(pairs.values())})\b", word) for word in request)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_the_call_that_it_shows_is_one_that_the_program_takes(values: dict[str, Any], tmp_path: Path) -> None:
    (words,) = _commands(_notes(values, tmp_path), "headstart")
    parser = argparse.ArgumentParser(exit_on_error=False)
    generate.configure(parser)
    parsed = parser.parse_args(words[2:])
    assert parsed.check_cache is (values is not CASES["others"])
    assert bool(parsed.ca_file) is ("server" in values)
    block_size = values.get("engine", {}).get("cache", {}).get("block_size", 16)
    assert len(parsed.prompt.split()) > block_size  # a word is a token at least


def test_keys_and_certificates_are_read_from_the_secrets_that_are_used(tmp_path: Path) -> None:
    notes = _notes(CASES["locked"], tmp_path)
    assert "get secret keys -o 'jsonpath={.data.the\\.router}'" in notes
    assert "get secret cert -o 'jsonpath={.data.ca\\.crt}'" in notes
    assert "--cert client.crt" in notes
    assert "HEADSTART_API_KEY" not in _notes({}, tmp_path)


def test_it_says_what_is_served_and_what_is_odd(tmp_path: Path) -> None:
    assert "serves smollm2-135m-instruct from 1 CPU pod(s) behind a router." in _notes({}, tmp_path)
    hub = _notes(CASES["hub"], tmp_path)
    assert '"model": "org/name"' in hub
    assert "fetches the model" in hub
    nobody = _notes({"model": {"source": {"type": "hf", "uri": "org/name"}}, "replicaCount": 0}, tmp_path)
    assert "fetches the model" not in nobody
    alone = _notes(CASES["no router"], tmp_path)
    assert "There is no router" in alone
    assert "Everybody in the cluster may call it" in alone
    assert "epool" not in alone
