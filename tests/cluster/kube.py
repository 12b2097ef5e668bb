"""The cluster as a test sees it: objects read, applied and awaited with kubectl, as its administrator.

The tests run in the first node's network, so that addresses of Services and of that node's pods are theirs. No state.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster import control_plane

Json = dict[str, Any]

PATIENCE_S = 60.0


def run(*arguments: str, given: str | None = None, timeout_s: float = 120.0) -> str:
    """What kubectl printed. Raises AssertionError with what it said when it fails."""
    done = _kubectl(arguments, given, timeout_s)
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def refusal(*arguments: str, given: str | None = None) -> str:
    """Why kubectl failed. Raises AssertionError when it did not."""
    done = _kubectl(arguments, given, PATIENCE_S)
    assert done.returncode != 0, f"kubectl {' '.join(arguments)} was not refused: {done.stdout}"
    return done.stderr


def read(kind: str, name: str, *, namespace: str = "default") -> Json:
    parsed: Json = json.loads(run("get", kind, name, f"--namespace={namespace}", "--output=json"))
    return parsed


def read_all(kind: str, *, namespace: str = "default", selector: str = "") -> list[Json]:
    arguments = ("get", kind, f"--namespace={namespace}", f"--selector={selector}", "--output=json")
    items: list[Json] = json.loads(run(*arguments))["items"]
    return items


def apply(item: Json) -> None:
    run("apply", "--filename=-", given=as_text(item))


def as_text(item: Json) -> str:
    """What kubectl reads from its input."""
    return json.dumps(item)


def until(what: str, check: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `check`. Raises AssertionError that says what did not come, with its last value."""
    ends = time.monotonic() + patience_s
    while not (value := check()):
        assert time.monotonic() < ends, f"no {what} after {patience_s:.0f} s, but {value!r}"
        time.sleep(0.25)
    return value


def make_namespace(name: str, labels: Mapping[str, str] | None = None) -> None:
    """One in which pods must be restricted, unless `labels` say otherwise; without what an earlier run has left."""
    run("delete", "namespace", name, "--ignore-not-found")
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": enforced if labels is None else dict(labels)}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def remove_namespace(name: str) -> None:
    """With all that is in it, and without waiting for the last of that."""
    run("delete", "pods", "--all", f"--namespace={name}", "--force", "--grace-period=0", "--wait=false")
    run("delete", "namespace", name, "--wait=false")


def pods(namespace: str, selector: str) -> list[Json]:
    """Those that are not on their way out."""
    found = read_all("pods", namespace=namespace, selector=selector)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def condition(item: Json, kind: str) -> Json:
    """{} when the object has none of that kind."""
    found: Sequence[Json] = item.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def name_of(item: Json) -> str:
    name: str = item["metadata"]["name"]
    return name


def start_visitor(namespace: str, name: str = "visitor", labels: Mapping[str, str] | None = None) -> None:
    """A pod with our command line that does nothing by itself."""
    container = {
        "name": "visitor",
        "image": "headstart/operator:0.1.0",
        "command": ["python3.11", "-c", "import signal; signal.pause()"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def await_visitor(namespace: str, name: str = "visitor") -> None:
    run("wait", "--for=condition=Ready", f"pod/{name}", f"--namespace={namespace}", "--timeout=60s")


def in_pod(namespace: str, pod: str, *command: str) -> list[str]:
    """A command line that runs `command` in the pod."""
    return control_plane.kubectl("exec", f"--namespace={namespace}", pod, "--", *command)


def _kubectl(arguments: Sequence[str], given: str | None, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = control_plane.kubectl(*arguments)
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
