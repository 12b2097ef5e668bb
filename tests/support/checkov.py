"""Checkov, which looks for what is insecure in Kubernetes objects, in an environment of its own.

It pins other versions of packages that we have, so it is installed once into the user's cache folder.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_VERSION = "3.3.30"
_INSTALL_TIMEOUT_S = 500
_RUN_TIMEOUT_S = 250


class Finding(NamedTuple):
    """A check that failed, on a kind of object."""

    check: str
    kind: str
    name: str
    what: str


def findings(folder: Path) -> list[Finding]:
    """Of the YAML files in a folder. Raises RuntimeError when it cannot be installed or does not run."""
    command = ["-m", "checkov.main", "--directory", folder, "--framework", "kubernetes", "--skip-download"]
    done = subprocess.run(
        [_python(), *command, "--compact", "--quiet", "--output", "json"],
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"checkov failed: {done.stderr}")
    report = json.loads(done.stdout)
    if report["summary"]["parsing_errors"] or not report["summary"]["passed"]:
        raise RuntimeError(f"checkov could not read what is in {folder}")
    found = []
    for each in report["results"]["failed_checks"]:
        kind, _, name = each["resource"].split(".", 2)
        found.append(Finding(each["check_id"], kind, name, each["check_name"]))
    return found


@functools.cache
def _python() -> Path:
    """The interpreter that has it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"
    folder = cache / f"checkov-{_VERSION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as part:
            ready = Path(part) / "ready"
            _install(ready)
            try:
                ready.rename(folder)
            except OSError:
                # Another test run was faster.
                if not folder.is_dir():
                    raise
    return folder / "bin/python"


def _install(folder: Path) -> None:
    python = folder / "bin/python"
    uv = shutil.which("uv")
    # A shim may be there without the program.
    has_uv = uv is not None and subprocess.run([uv, "--version"], capture_output=True, check=False).returncode == 0
    installer = (
        [uv, "pip", "install", "--quiet", "--python", python] if has_uv else [python, "-m", "pip", "install", "-q"]
    )
    for command in ([sys.executable, "-m", "venv", folder], [*installer, f"checkov=={_VERSION}"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"checkov {_VERSION} cannot be installed: {done.stderr}")
