"""The chart as a test installs it, with helm against the cluster. Knows nothing of what the pods answer. No state."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import kube, place
from support import helm

QUICK: dict[str, Any] = {
    # Two nodes of two cores hold every scene; and nobody waits for a drain that drains nothing.
    "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    "operator": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}},
    "server": {"drain": {"delaySeconds": 1, "timeoutSeconds": 20}},
}
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Release:
    """`name` contains "headstart", so that it is the name of the objects too."""

    namespace: str
    name: str = "headstart"
    helm: Path | None = None

    @property
    def front(self) -> str:
        """host:port of the client Service, as pods call it."""
        return f"{self.name}.{self.namespace}.svc:50051"

    @property
    def address(self) -> str:
        """The same without a name, for who has no cluster DNS."""
        service = kube.read("service", self.name, namespace=self.namespace)
        return f"{service['spec']['clusterIP']}:50051"

    def selector(self, component: str) -> str:
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"

    def pods(self, component: str) -> list[kube.Json]:
        return kube.pods(self.namespace, self.selector(component))

    def pool(self) -> kube.Json:
        return kube.read("enginepool", self.name, namespace=self.namespace)

    def holder(self) -> str:
        """Of the Lease: who writes."""
        lease = kube.read("lease", f"{self.name}-operator", namespace=self.namespace)
        holder: str = lease["spec"].get("holderIdentity") or ""
        return holder


def install(release: Release, values: Mapping[str, Any] | None = None, *options: str) -> None:
    """Returns when all its pods are ready."""
    _give(release, "install", values, "--wait", *options)


def upgrade(release: Release, values: Mapping[str, Any] | None = None, *options: str) -> None:
    _give(release, "upgrade", values, "--wait", *options)


def uninstall(release: Release) -> None:
    command(release, "uninstall", release.name, "--wait")


def refusal(release: Release, values: Mapping[str, Any]) -> str:
    """Why helm did not install it. Raises AssertionError when it did."""
    try:
        _give(release, "install", values)
    except AssertionError as error:
        return str(error)
    raise AssertionError("helm did not refuse it")


def command(release: Release, *arguments: str, given: str | None = None) -> str:
    """What helm printed. Raises AssertionError with what it said when it fails."""
    program = release.helm or helm.helm4()
    line = [program, *arguments, f"--namespace={release.namespace}", f"--kubeconfig={place.admin_config()}"]
    done = subprocess.run(line, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S + 60, check=False)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def scale(release: Release, count: int) -> None:
    """Of engine pods; does not wait."""
    kube.run("scale", f"deployment/{release.name}-engine", f"--replicas={count}", f"--namespace={release.namespace}")


def await_pool(release: Release, count: int) -> None:
    """Until its EnginePool says that it has so many pods, all of which take requests."""
    counted = {"total": count, "ready": count}
    kube.until(f"{count} pods in the pool", lambda: release.pool().get("status", {}).get("pods") == counted)


def _give(release: Release, verb: str, values: Mapping[str, Any] | None, *options: str) -> None:
    """The values as QUICK with `values` over them."""
    given = json.dumps(_merged(QUICK, values or {}))
    chart = os.fspath(helm.CHART)
    command(release, verb, release.name, chart, "--values=-", f"--timeout={_TIMEOUT_S}s", *options, given=given)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
