"""A release with keys, certificates and a secret seed, without a cluster: what its containers are told works together.

The settings files, the mounted Secrets and the arguments are those that the chart renders; only addresses differ.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.certificates import Authority
from support.helm import CHART, NAMESPACE, Json, Objects, render
from support.program import ENVIRONMENT, Program
from support.value_case import FULLNAME

_CASE = CHART / "ci/auth-values.yaml"
_FRONT = f"{FULLNAME}.{NAMESPACE}.svc"
_PODS = f"{FULLNAME}-engine.{NAMESPACE}.svc"

Secrets = Mapping[str, Mapping[str, bytes]]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    """Those that the case names."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    certificates = {}
    for secret, name in {"pods-tls": _PODS, "router-tls": _FRONT}.items():
        pair = authority.issue(secret, alt_name=f"DNS:{name}")
        certificates[secret] = {
            "tls.crt": pair.cert.read_bytes(),
            "tls.key": pair.key.read_bytes(),
            "ca.crt": authority.ca.read_bytes(),
        }
    keys = {"operator": b"the-routers-key-0123456789", "ops": b"the-admins-key-01234567890"}
    return {**certificates, "tenants": keys, "fleet": {"hash-seed": b"seed"}}


@pytest.fixture(scope="module")
def objects() -> Objects:
    return render(None, "--values", _CASE)


def _mount(spec: Json, root: Path, secrets: Secrets) -> None:
    """The container's Secrets as files below `root`, as the kubelet would lay them."""
    (container,) = spec["containers"]
    folders = {each["name"]: root / each["mountPath"].removeprefix("/") for each in container["volumeMounts"]}
    for volume in spec["volumes"]:
        for source in volume.get("projected", {}).get("sources", [volume]):
            if "secret" not in source:
                continue
            secret = source["secret"]
            content = secrets[secret.get("secretName") or secret["name"]]
            folder = folders[volume["name"]]
            folder.mkdir(parents=True, exist_ok=True)
            for item in secret.get("items") or [{"key": key, "path": key} for key in content]:
                (folder / item["path"]).write_bytes(content[item["key"]])


def _start(objects: Objects, component: str, root: Path, secrets: Secrets, *more: str) -> Program:
    """The component's program with its settings file and its Secrets."""
    spec = objects["Deployment", f"{FULLNAME}-{component}"]["spec"]["template"]["spec"]
    _mount(spec, root, secrets)
    text = objects["ConfigMap", f"{FULLNAME}-{component}"]["data"]["headstart.yaml"]
    settings = root / "headstart.yaml"
    settings.write_text(text.replace("/run/headstart/", f"{root}/run/headstart/"))
    flags = [*spec["containers"][0]["args"], "--secrets-dir", f"{root}/run/secrets/headstart", *more]
    return Program(*flags, HEADSTART_CONFIG_FILE=str(settings))


@pytest.fixture(scope="module")
def router(objects: Objects, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """With one pod behind it."""
    pod = _start(objects, "engine", tmp_path_factory.mktemp("pod"), secrets, "--num-gpu-blocks-override", "600")
    try:
        router = _start(objects, "operator", tmp_path_factory.mktemp("router"), secrets, "--endpoints", pod.address)
        try:
            yield router
        finally:
            router.close()
    finally:
        pod.close()


def _helm_test(
    objects: Objects, router: Program, root: Path, secrets: Secrets, *more: str
) -> subprocess.CompletedProcess[str]:
    spec = objects["Pod", f"{FULLNAME}-test"]["spec"]
    _mount(spec, root, secrets)
    arguments = [
        each.replace("/run/headstart/", f"{root}/run/headstart/").replace(f"{_FRONT}:50051", router.address)
        for each in spec["containers"][0]["args"]
    ]
    command = [sys.executable, "-m", "headstart", *arguments, "--tls-server-name", _FRONT, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)


def test_helm_test_passes_through_every_lock(
    objects: Objects, router: Program, secrets: Secrets, tmp_path: Path
) -> None:
    done = _helm_test(objects, router, tmp_path, secrets)
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stderr.splitlines() if "prompt tokens" in line]
    assert ", 0 of them cached" in first
    assert ", 32 of them cached" in second


def test_helm_test_fails_with_a_key_that_is_not_the_tenants(
    objects: Objects, router: Program, secrets: Secrets, tmp_path: Path
) -> None:
    wrong = {**secrets, "tenants": {"operator": b"another-key-01234567890123"}}
    done = _helm_test(objects, router, tmp_path, wrong)
    assert done.returncode == 1
    assert "UNAUTHENTICATED" in done.stderr
