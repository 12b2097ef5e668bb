"""Builds the cluster's binaries from Go modules, once: what is in the cache is not built again.

Says what it builds and how far it is. A build that was ended goes on where it was, by Go's own cache. Owner of its
state: the cache folder, one builder at a time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import place
from cluster.recipes import RECIPES, Recipe

_TELL_EVERY_S = 30


def build() -> None:
    """Builds what the cache lacks. Raises RuntimeError when there is no Go, CalledProcessError when a build fails."""
    missing = [recipe for recipe in RECIPES if not place.binary(recipe.name).exists()]
    if not missing:
        return
    if not shutil.which("go"):
        raise RuntimeError(
            "no `go` on this machine: the cluster's binaries are built from Go modules (Go 1.24 or newer)"
        )
    with _alone(place.cache()):
        print(f"cluster: building into {place.cache()} (20 minutes on two cores, once)", flush=True)
        for number, recipe in enumerate(RECIPES, start=1):
            if not place.binary(recipe.name).exists():
                _build(recipe, f"{number} of {len(RECIPES)}: {recipe.name}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Whoever comes second waits, and then finds all built."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe, shown: str) -> None:
    started, target = time.monotonic(), place.binary(recipe.name)
    partial = target.with_suffix(".partial")
    command = ["go", "build", "-trimpath", "-ldflags", f"-s -w {recipe.flags}", "-o", str(partial), recipe.package]
    print(f"cluster: {shown}", flush=True)
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    process = subprocess.Popen(command, cwd=place.HERE / "tools" / recipe.module, env=environment)
    try:
        while (status := _wait(process)) is None:
            print(f"cluster: {shown}, {time.monotonic() - started:.0f} s", flush=True)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if status:
        raise subprocess.CalledProcessError(status, command)
    partial.rename(target)
    print(f"cluster: {shown}, done in {time.monotonic() - started:.0f} s", flush=True)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_TELL_EVERY_S)
    except subprocess.TimeoutExpired:
        return None
