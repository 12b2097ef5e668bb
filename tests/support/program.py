"""`headstart` commands as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")} | {
    "OMP_NUM_THREADS": "1"
}
_PORTS = ["--host", "127.0.0.1", "--health-port", "0", "--http-port", "0", "--metrics-port", "0"]


class Program:
    """One `headstart` process that says on which port it serves."""

    def __init__(self, *arguments: str, port: int = 0, **environment: str) -> None:
        command = [sys.executable, "-m", "headstart", *arguments, *_PORTS, "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | environment)
        assert self.process.stderr is not None
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"gRPC on port (\d+)", line):
                self.port = int(found.group(1))
                break
        else:
            self.close()
            raise AssertionError(f"{arguments[0]} did not come up: {said}")
        self.address = f"127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
