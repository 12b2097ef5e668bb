"""Pods and router of the demo as real processes: the whole demo with what it tells one to try, a pod that dies, no
process that stays."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from headstart.cli.demo.fleet import empty, inexact_pods, play, start_fleet
from headstart.cli.demo.fleet_scene import FleetOutcome, Served, check_fleet
from headstart.cli.demo.programs import Programs
from headstart.errors import ConfigError

_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("HEADSTART_")}
_END_S = 20


def _assert_gone(processes: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=_END_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def _ignore(news: object) -> None:
    """Of a test that looks at the end only."""


class _Demo:
    """`headstart demo --keep` in a pipe, read up to its last line."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", "-m", "headstart", "demo", "--keep"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ENVIRONMENT
        )
        self.errors: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self.errors.extend, args=(self.process.stderr,))
        self._reader.start()
        self.text = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if line.startswith("Ctrl-C"):
                break
        self.children = psutil.Process(self.process.pid).children()

    def commands(self, word: str) -> list[str]:
        """What it tells one to try, of this kind."""
        found = [line for line in self.text.splitlines() if re.search(rf"^  (\S*headstart )?{word}", line)]
        assert len(found) == 1
        return shlex.split(found[0], comments=True)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[_Demo]:
    kept = _Demo()
    try:
        yield kept
    finally:
        kept.close()


def _try(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_ENVIRONMENT, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_whole_demo_holds_and_is_plain_text_in_a_pipe(demo: _Demo) -> None:
    assert "✗" not in demo.text, demo.text
    assert demo.text.count("✓") == 9 + 7
    assert "\x1b" not in demo.text
    assert "18 of 18 requests to the token" in demo.text
    assert "First token, a warm prompt against a cold one" in demo.text
    assert not any("Traceback" in line for line in demo.errors)


@pytest.mark.slow
def test_what_it_tells_one_to_try_works_as_it_stands(demo: _Demo) -> None:
    assert _try(demo.commands("generate")).strip()
    assert _try(demo.commands("chat"), input="Say hello\n").strip()
    assert "exact" in _try(demo.commands("cache verify"))
    assert "blocks in use" in _try(demo.commands("cache show"))
    assert '"content"' in _try(demo.commands("curl"))
    _try(demo.commands("kill"))
    assert _try(demo.commands("generate")).strip()


def test_ctrl_c_ends_it_well_and_all_its_children(demo: _Demo) -> None:
    children = [child for child in demo.children if child.is_running()]
    assert len(children) >= 2
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(_END_S) == 0
    _assert_gone(children)


async def test_a_pod_that_dies_in_the_middle_costs_no_answer_and_is_named() -> None:
    async with Programs() as programs:
        fleet = await start_fleet(programs, model=None, tell=_ignore)
        in_turn = await play(fleet.pods, _ignore)
        await empty(fleet)
        victim = fleet.pods[1]

        def kill(served: Sequence[Served]) -> None:
            if len(served) == 9:
                victim.process.kill()

        routed = await play([fleet.router], kill)
        inexact = await inexact_pods(fleet.router)
        outcome = FleetOutcome(in_turn=in_turn, routed=routed, ended=fleet.ended, inexact=inexact)
    checks = dict(check_fleet(outcome))
    assert checks.pop("both pods and the router ran until the end, not so: pod b") is False
    assert checks["all 36 requests were answered to their end"]
    assert checks["both rounds gave the same first tokens, whichever pod answered"]
    assert {each.pod for each in routed.served[:9]} == {"a", "b"}
    assert {each.pod for each in routed.served[9:]} == {"a"}


_STARTER = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
from headstart.cli.demo.programs import Programs

async def main():
    async with Programs() as programs:
        started = [await programs.start(name, "serve", "--runner", "simulated") for name in ("one", "two")]
        print(*(each.process.pid for each in started), flush=True)
        await asyncio.gather(*(each.wait_ready() for each in started))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["kill", "term", "int"])
def test_no_child_outlives_its_starter_however_that_ends(number: int) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_ENVIRONMENT | {"HEADSTART_CACHE__BLOCK_SIZE": "of the user's own pods"},
    )
    try:
        assert starter.stdout is not None
        children = [psutil.Process(int(word)) for word in starter.stdout.readline().split()]
        assert len(children) == 2
        if number == signal.SIGKILL:  # the others while the children are still starting
            assert starter.stdout.readline() == "ready\n"
        starter.send_signal(number)
        _assert_gone(children)
    finally:
        starter.kill()
        starter.communicate()


async def test_a_pod_that_does_not_come_up_is_an_error_with_its_own_words(tmp_path: Path) -> None:
    async with Programs() as programs:
        program = await programs.start("pod a", "serve", "--model", str(tmp_path / "nothing.gguf"))
        with pytest.raises(ConfigError, match=r"pod a did not come up:\n(.*\n)*.*nothing\.gguf"):
            await program.wait_ready()
