"""The program as a container's first process, which the kernel keeps from a SIGTERM that it did not ask for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_WAITS = """
import time
from headstart import cli

cli._run = lambda _: (print("here", flush=True), time.sleep(60))
cli.main([])
"""


def test_a_signal_before_a_command_asks_for_it_ends_the_program() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _WAITS]
    if os.getuid() != 0:
        command[1:1] = ["--user", "--map-root-user"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
