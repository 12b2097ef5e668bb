"""`python -m cluster up | down | build | test | scenes | shell [arguments]`: what `make cluster-up` and its kin run.

`test` starts a cluster, runs the scenes inside its first node's network, and takes the cluster away whatever happens.
`scenes` runs them on the cluster that is up; both pass their arguments to pytest. `shell` is one inside that network,
or the command that its arguments are, with kubectl and helm at hand.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cluster import lifecycle, place
from support import helm

_LOCK = Path("/run/lock/headstart-cluster")


def main() -> int:
    # SIGINT too: whoever starts us in the background may have had it ignored.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    command, *rest = sys.argv[1:] or [""]
    actions = {"build": lifecycle.build, "up": lifecycle.up, "down": lifecycle.down}
    try:
        if command == "scenes":
            return _scenes(rest)
        if command == "shell":
            _become_shell(rest)
        if command == "test":
            with _alone():
                return _test(rest)
        if command not in actions or rest:
            print(__doc__, file=sys.stderr)
            return 2
        with _alone():
            actions[command]()
    except (RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"cluster: interrupted; what it had started is gone, its logs are in {place.STATE / 'log'}", file=sys.stderr
        )
        return 130
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time: the cluster's names and addresses are the machine's."""
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another process is at work on this machine's test cluster") from None
        yield


def _test(arguments: list[str]) -> int:
    """A new cluster: one that is up may have the images of other sources. pytest's own exit status."""
    lifecycle.build()
    lifecycle.down()
    # What fails to come up takes itself away, but for its logs.
    lifecycle.up()
    try:
        return _scenes(arguments)
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        lifecycle.down()


def _scenes(arguments: list[str]) -> int:
    where = [] if any(each.startswith("tests/cluster") for each in arguments) else [place.HERE]
    tests = place.in_node(place.NODES[0], sys.executable, "-m", "pytest", *where, *arguments)
    with subprocess.Popen(tests, cwd=place.ROOT, env=os.environ | {"CLUSTER_TESTS": "1"}) as process:
        return _ended(process)


def _become_shell(arguments: list[str]) -> None:
    if not (Path("/run/netns") / place.NODES[0].netns).exists():
        raise RuntimeError("none is up; make cluster-up")
    tools = helm.helm4().parent
    environment = {"KUBECONFIG": str(place.admin_config()), "PATH": f"{tools}:{os.environ['PATH']}"}
    command = place.in_node(place.NODES[0], *(arguments or [os.environ.get("SHELL", "/bin/sh")]))
    os.execvpe(command[0], command, os.environ | environment)


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
