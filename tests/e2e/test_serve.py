"""The program as a person runs it: `serve` in a process of its own, the client commands against it, SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")}
_FREE_PORTS = ["--health-port", "0", "--http-port", "0", "--metrics-port", "0"]
_QUICK = ["--runner", "simulated", "--host", "127.0.0.1", *_FREE_PORTS, "--port", "0"]


def _run(*arguments: str, text_in: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headstart", *arguments],
        input=text_in,
        capture_output=True,
        text=True,
        timeout=60,
        env=_ENVIRONMENT,
        check=False,
    )


@pytest.fixture(scope="module")
def pod() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A simulated pod and its endpoint."""
    environment = _ENVIRONMENT | {"HEADSTART_SERVER__DRAIN_DELAY_S": "0", "HEADSTART_RUNNER__STEP_SECONDS": "0.001"}
    command = [sys.executable, "-m", "headstart", "serve", *_QUICK]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        port = None
        for line in process.stderr:
            if found := re.search(r"ready, gRPC on port (\d+)", line):
                port = found.group(1)
                break
        assert port is not None
        try:
            yield process, f"127.0.0.1:{port}"
        finally:
            process.kill()


def test_generate_streams_json_lines_with_one_end(pod: tuple[subprocess.Popen[str], str]) -> None:
    result = _run("generate", "--endpoint", pod[1], "--token-ids", "101,102,103", "--max-tokens", "5", "--json")
    messages = [json.loads(line) for line in result.stdout.splitlines()]
    token_ids = [token for message in messages if "chunk" in message for token in message["chunk"]["token_ids"]]
    assert (result.returncode, len(token_ids)) == (0, 5)
    assert [message for message in messages if "finished" in message] == [messages[-1]]
    assert messages[-1]["finished"]["usage"]["prompt_tokens"] == 3


def test_cache_show_counts_what_a_prompt_left(pod: tuple[subprocess.Popen[str], str]) -> None:
    ids = ",".join(str(token) for token in range(200, 264))
    assert _run("generate", "--endpoint", pod[1], "--token-ids", ids, "--max-tokens", "1").returncode == 0
    shown = json.loads(_run("cache", "show", "--endpoint", pod[1], "--json").stdout)
    assert shown["cache"]["num_hashes"] == 4
    assert (shown["cache"]["num_first_blocks"], shown["cache"]["num_chain_ends"]) == (1, 1)
    assert shown["state"]["cached_blocks"] == 4
    table = _run("cache", "show", "--endpoint", pod[1])
    assert table.returncode == 0
    assert "hashes held" in table.stdout


def test_generate_fails_unless_the_second_answer_found_the_prompt_cached(
    pod: tuple[subprocess.Popen[str], str],
) -> None:
    ids = ",".join(str(token) for token in range(400, 464))
    cached = _run("generate", "--endpoint", pod[1], "--token-ids", ids, "--max-tokens", "2", "--json", "--check-cache")
    ends = [json.loads(line)["finished"] for line in cached.stdout.splitlines() if '"finished"' in line]
    assert (cached.returncode, [end["usage"]["cached_tokens"] for end in ends]) == (0, [0, 63])
    short = _run("generate", "--endpoint", pod[1], "--token-ids", "7,8,9", "--max-tokens", "2", "--check-cache")
    assert short.returncode == 1
    assert "none of the 3 prompt tokens were cached" in short.stderr


def test_a_refused_request_is_one_line_and_exit_code_1(pod: tuple[subprocess.Popen[str], str]) -> None:
    result = _run("generate", "--endpoint", pod[1], "--token-ids", "101", "--temperature", "nan")
    assert result.returncode == 1
    assert "INVALID_ARGUMENT" in result.stderr
    assert "temperature" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_pod_without_a_tokenizer_says_so(pod: tuple[subprocess.Popen[str], str]) -> None:
    result = _run("tokenize", "hello", "--endpoint", pod[1])
    assert result.returncode == 1
    assert "FAILED_PRECONDITION" in result.stderr


def test_chat_says_what_is_wrong_and_ends(pod: tuple[subprocess.Popen[str], str]) -> None:
    result = _run("chat", "--endpoint", pod[1], text_in="hello\n")
    assert result.returncode == 1
    assert "FAILED_PRECONDITION" in result.stderr


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_a_word_ends_the_chat(pod: tuple[subprocess.Popen[str], str], word: str) -> None:
    assert _run("chat", "--endpoint", pod[1], text_in=f"{word}\nhello\n").returncode == 0


def test_a_taken_port_and_a_wrong_setting_end_the_start_with_code_2(pod: tuple[subprocess.Popen[str], str]) -> None:
    taken = _run("serve", *_QUICK[:-1], pod[1].rpartition(":")[2])
    assert taken.returncode == 2
    assert "cannot listen on" in taken.stderr
    assert "Traceback" not in taken.stderr
    wrong = _run("serve", "--model", "/nowhere/at-all.gguf", "--port", "0", *_FREE_PORTS)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_sigterm_ends_the_pod_with_code_0(pod: tuple[subprocess.Popen[str], str]) -> None:
    process, _ = pod
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
