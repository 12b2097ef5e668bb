"""`python -m cluster up | down | build | test | scenes [arguments of pytest]`: what `make cluster-up` and its kin run.

`test` starts a cluster, runs the scenes inside its first node's network, and takes the cluster away whatever happens.
`scenes` runs them on the cluster that is up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from cluster import lifecycle, place


def main() -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    command, *rest = sys.argv[1:] or [""]
    try:
        if command == "test":
            return _test(rest)
        if command == "scenes":
            return _scenes(rest)
        actions = {"build": lifecycle.build, "up": lifecycle.up, "down": lifecycle.down}
        if command not in actions or rest:
            print(__doc__, file=sys.stderr)
            return 2
        actions[command]()
    except (RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _test(arguments: list[str]) -> int:
    """A new cluster: one that is up may have the images of other sources. pytest's own exit status."""
    lifecycle.build()
    lifecycle.down()
    try:
        lifecycle.up()
        return _scenes(arguments)
    finally:
        lifecycle.down()


def _scenes(arguments: list[str]) -> int:
    where = [] if any(each.startswith("tests/cluster") for each in arguments) else [place.HERE]
    tests = place.in_node(place.NODES[0], sys.executable, "-m", "pytest", *where, *arguments)
    with subprocess.Popen(tests, cwd=place.ROOT, env=os.environ | {"CLUSTER_TESTS": "1"}) as process:
        return _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for it; whoever interrupts us interrupts it, and it may finish what it prints."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
