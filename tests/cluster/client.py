"""Who sends prompts: `headstart generate`, from this machine or from a pod, one answer at a time or as a stream.

A stream's output goes through a file, so that a slow reader holds up nobody. State: a stream owns its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import kube

_PROGRAM = Path(sys.executable).with_name("headstart")
# No settings of whoever runs the tests.
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")}
RULES = "You are the help desk of a shipyard. Answer in one sentence. " * 12
"""A beginning that is long enough to be worth caching."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str
    pod: str


def generate(endpoint: str, prompt: str, *, max_tokens: int = 8, timeout_s: float = 60.0) -> Answer:
    """From this machine. Raises AssertionError with what the command said."""
    return _read(_run([str(_PROGRAM), *_arguments(endpoint, prompt, max_tokens)], timeout_s))


def generate_in_pod(namespace: str, pod: str, endpoint: str, prompt: str, *, max_tokens: int = 8) -> Answer:
    """As `generate`, from a pod that has the command."""
    command = kube.in_pod(namespace, pod, "headstart", *_arguments(endpoint, prompt, max_tokens))
    return _read(_run(command, 60.0))


def can_connect(namespace: str, pod: str, address: str, port: int) -> bool:
    """Whether a TCP connection from the pod comes about in 3 s; a policy drops packets without a word."""
    program = f"import socket; socket.create_connection(({address!r}, {port}), timeout=3)"
    done = subprocess.run(
        kube.in_pod(namespace, pod, "python3.11", "-c", program),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 0:
        return True
    assert "TimeoutError" in done.stderr or "ConnectionRefusedError" in done.stderr, done.stderr
    return False


class Stream:
    """An answer on its way, from this machine."""

    def __init__(self, endpoint: str, prompt: str, output: Path, *, max_tokens: int) -> None:
        self._output = output
        self._errors = output.with_suffix(".err")
        with output.open("w") as lines, self._errors.open("w") as errors:
            command = [str(_PROGRAM), *_arguments(endpoint, prompt, max_tokens)]
            self._process = subprocess.Popen(command, stdout=lines, stderr=errors, env=_ENVIRONMENT)

    def await_tokens(self, count: int) -> None:
        """Until so many have come."""
        kube.until(f"{count} tokens", lambda: len(_token_ids(self._lines())) >= count)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def finish(self, timeout_s: float = 120.0) -> Answer:
        """The whole answer. Raises AssertionError with what the command said when it failed."""
        status = self._process.wait(timeout_s)
        assert status == 0, self._errors.read_text()
        return _read(self._output.read_text())

    def _lines(self) -> list[str]:
        return self._output.read_text().split("\n")[:-1]


def _arguments(endpoint: str, prompt: str, max_tokens: int) -> list[str]:
    bounds = ["--temperature", "0", "--max-tokens", str(max_tokens), "--min-tokens", str(max_tokens), "--ignore-eos"]
    return ["generate", "--json", "--endpoint", endpoint, *bounds, "--", prompt]


def _run(command: Sequence[str], timeout_s: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=_ENVIRONMENT)
    assert done.returncode == 0, f"{done.stderr}{done.stdout}"
    return done.stdout


def _read(output: str) -> Answer:
    messages = [json.loads(line) for line in output.splitlines()]
    (finished,) = [each["finished"] for each in messages if "finished" in each]
    return Answer(
        text="".join(each["chunk"]["text"] for each in messages if "chunk" in each),
        token_ids=_token_ids(output.splitlines()),
        prompt_tokens=finished["usage"]["prompt_tokens"],
        cached_tokens=finished["usage"]["cached_tokens"],
        finish_reason=finished["finish_reason"],
        pod=finished["route"]["pod"],
    )


def _token_ids(lines: Sequence[str]) -> tuple[int, ...]:
    messages = [json.loads(line) for line in lines]
    return tuple(token for each in messages if "chunk" in each for token in each["chunk"]["token_ids"])
