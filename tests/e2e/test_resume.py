"""`headstart generate` and `chat` when the server of their answer hangs, or is killed and starts again on its port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

from support.program import ENVIRONMENT, Program

_PROMPT = ",".join(str(100 + number) for number in range(40))
_NUM_TOKENS = 120
_ASKED_AGAIN = "asking again after"


def _pod(port: int = 0) -> Program:
    return Program("serve", "--runner", "simulated", port=port, HEADSTART_RUNNER__STEP_SECONDS="0.02")


def _client(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "headstart", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def _generate(address: str, *flags: str) -> subprocess.Popen[str]:
    given = ("--temperature", "0.8", "--seed", "7", "--timeout", "60", "--max-tokens", str(_NUM_TOKENS), *flags)
    return _client("generate", "--endpoint", address, *given)


@contextmanager
def _router(pod: Program, port: int = 0) -> Iterator[Program]:
    program = Program("route", "--endpoints", pod.address, port=port)
    try:
        yield program
    finally:
        program.close()


def _begin(client: subprocess.Popen[str], num_lines: int = 0) -> str:
    """The first lines that it prints, or a few characters."""
    assert client.stdout is not None
    return "".join(client.stdout.readline() for _ in range(num_lines)) if num_lines else client.stdout.read(8)


def _end(client: subprocess.Popen[str], returncode: int = 0) -> tuple[str, str]:
    """What it printed since, and all that it told. It must end so."""
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stderr is not None
    with client, client.stdin, client.stdout, client.stderr:
        client.stdin.close()
        # Not `communicate`, which does not see what a read before it has taken beyond its end.
        printed, told = client.stdout.read(), client.stderr.read()
    assert client.returncode == returncode, told
    return printed, told


def _tokens(printed: str) -> dict[int, list[int]]:
    """By choice, each of which must have one end."""
    messages = [json.loads(line) for line in printed.splitlines()]
    ends = Counter(message["finished"]["index"] for message in messages if "finished" in message)
    found: dict[int, list[int]] = {index: [] for index in ends}
    for message in messages:
        if "chunk" in message:
            found[message["chunk"]["index"]] += message["chunk"]["token_ids"]
    assert set(ends.values()) == {1}
    assert [len(ids) for ids in found.values()] == [_NUM_TOKENS] * len(found)
    return found


def test_a_killed_pod_that_starts_again_gives_the_rest_and_nothing_twice() -> None:
    flags = ("--token-ids", _PROMPT, "--json", "--n", "2", "--ignore-eos")
    pod = _pod()
    try:
        expected = _tokens(_end(_generate(pod.address, *flags))[0])
        client = _generate(pod.address, *flags)
        begun = _begin(client, 10)
        pod.close()
        pod = _pod(pod.port)
        rest, told = _end(client)
    finally:
        pod.close()
    assert _tokens(begun + rest) == expected
    assert told.count("\n") == told.count(_ASKED_AGAIN) == 1


def test_an_answer_through_a_killed_router_goes_on_as_if_nothing_had_been() -> None:
    pod = Program("serve", "--device", "cpu")
    try:
        with _router(pod) as router:
            whole, usage = _end(_generate(router.address, "--ignore-eos", "Once upon a time"))
            client = _generate(router.address, "--ignore-eos", "Once upon a time")
            begun = _begin(client)
            router.close()
            with _router(pod, router.port):
                rest, told = _end(client)
    finally:
        pod.close()
    assert begun + rest == whole
    assert told.count("\n") == 2
    assert _ASKED_AGAIN in told
    assert f"{_NUM_TOKENS} generated (length)" in told
    assert f"{_NUM_TOKENS} generated (length)" in usage


def test_an_answer_of_a_server_that_hangs_is_asked_for_again() -> None:
    flags = ("--token-ids", _PROMPT, "--json", "--ignore-eos")
    with closing(_pod()) as pod:
        expected = _tokens(_end(_generate(pod.address, *flags))[0])
        client = _generate(pod.address, *flags)
        assert client.stderr is not None
        begun = _begin(client, 10)
        os.kill(pod.process.pid, signal.SIGSTOP)
        try:
            told = client.stderr.readline()
        finally:
            os.kill(pod.process.pid, signal.SIGCONT)
        rest, _ = _end(client)
    assert _ASKED_AGAIN in told
    assert _tokens(begun + rest) == expected


def test_a_conversation_outlives_its_pod() -> None:
    pod = Program("serve", "--device", "cpu")
    client = _client("chat", "--endpoint", pod.address, "--temperature", "0", "--max-tokens", "12")
    assert client.stdin is not None
    try:
        client.stdin.write("Say hello\n")
        client.stdin.flush()
        assert _begin(client, 1)
        pod.close()
        client.stdin.write("Say it again\n")
        client.stdin.flush()
        pod = Program("serve", "--device", "cpu", port=pod.port)
        rest, told = _end(client)
    finally:
        pod.close()
    assert rest
    assert told.count(_ASKED_AGAIN) == 1


def test_of_a_server_that_does_not_come_back_the_loss_is_told_at_last() -> None:
    pod = _pod()
    client = _generate(pod.address, "--token-ids", _PROMPT, "--json", "--ignore-eos", "--timeout", "3")
    try:
        begun = _begin(client, 1)
    finally:
        pod.close()
    rest, told = _end(client, returncode=1)
    assert "finished" not in begun + rest
    assert _ASKED_AGAIN in told
    assert told.splitlines()[-1].startswith("headstart: UNAVAILABLE")
