"""A pod on a CPU answers with the real model and never touches torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")}

# The pod's process says which modules it has once it is asked to end; a module that was imported stays in the list.
_SERVE = """
import sys
from headstart.cli import main
code = main(sys.argv[1:])
print("modules:", *sorted(name.partition(".")[0] for name in sys.modules))
sys.exit(code)
"""


@pytest.fixture
def pod() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A pod with the built-in model, and its endpoint."""
    ports = [flag for name in ("port", "health-port", "http-port", "metrics-port") for flag in (f"--{name}", "0")]
    flags = ["--host", "127.0.0.1", "--device", "cpu", "--num-gpu-blocks-override", "64", *ports]
    environment = _ENVIRONMENT | {"HEADSTART_SERVER__DRAIN_DELAY_S": "0"}
    command = [sys.executable, "-c", _SERVE, "serve", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"ready, gRPC on port (\d+)", line):
                break
        else:
            pytest.fail("the pod ended before it was ready: " + "".join(lines))
        try:
            yield process, f"127.0.0.1:{found.group(1)}"
        finally:
            process.kill()


def test_a_request_is_served_on_a_cpu_without_torch(pod: tuple[subprocess.Popen[str], str]) -> None:
    process, endpoint = pod
    question = ["generate", "--endpoint", endpoint, "--temperature", "0", "--max-tokens", "8"]
    question.append("The capital of France is")
    answer = subprocess.run(
        [sys.executable, "-m", "headstart", *question],
        capture_output=True,
        text=True,
        timeout=60,
        env=_ENVIRONMENT,
        check=True,
    )
    assert "Paris" in answer.stdout
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_native" in mapped
    assert not re.findall(r"\S*(?:torch|libc10|libgomp|libmkl)\S*", mapped)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    modules = output.split("modules:")[1].split()
    assert "headstart" in modules
    assert "torch" not in modules
    assert "gguf" not in modules
