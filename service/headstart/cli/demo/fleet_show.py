"""Prints what the tenants' requests met: the routing table while it grows, then times and checks.

In colour and redrawn in place on a terminal; in a pipe plain text, each table once.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headstart.cli.demo.fleet import BLOCK_SIZE, NUM_BLOCKS, Fleet
from headstart.cli.demo.fleet_scene import (
    FleetOutcome,
    Served,
    check_fleet,
    found_prefix,
    hit_ratio,
    median_ttft_s,
    slowest_ttft_s,
)
from headstart.cli.demo.tenants import QUESTIONS, TENANTS

_ORDINALS = ("first", "second", "third", "fourth")
_COLOURS = {"a": "cyan", "b": "magenta"}
_NOTICEABLE = 1.1


def print_opening(console: Console) -> None:
    console.print(
        f"{len(TENANTS)} tenants send the same requests twice, one at a time, for one token each. A tenant's prompts "
        f"begin with its own long instructions; a pod's cache, {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens, has room "
        "for those of three."
    )


@contextmanager
def growing_table(console: Console, title: str) -> Iterator[Callable[[Sequence[Served]], None]]:
    """Yields what takes the requests so far."""
    if console.is_terminal:
        with Live(_routes(title, ()), console=console, auto_refresh=False) as live:
            yield lambda served: live.update(_routes(title, served), refresh=True)
        return
    latest: list[Served] = []

    def keep(served: Sequence[Served]) -> None:
        latest[:] = served

    yield keep
    console.print(_routes(title, latest))


def _routes(title: str, served: Sequence[Served]) -> Table:
    table = Table(title=title)
    table.add_column("tenant")
    for ordinal in _ORDINALS[: len(QUESTIONS)]:
        table.add_column(f"{ordinal} request", justify="right", min_width=18, no_wrap=True)
    by_place = {(each.tenant, each.question): each for each in served}
    for tenant in TENANTS:
        cells = (by_place.get((tenant, question)) for question in range(len(QUESTIONS)))
        table.add_row(tenant, *(_cell(each) if each is not None else "" for each in cells))
    return table


def _cell(one: Served) -> Text:
    """ "a  352   45 ms": pod, cached tokens, time to the first token."""
    pod = Text(one.pod or "?", style=_COLOURS.get(one.pod, ""))
    if one.problem:
        return Text.assemble(pod, ("  no answer", "bold red"))
    style = "green" if found_prefix(one) else "yellow"
    return Text.assemble(pod, (f"{one.cached_tokens:>5}{one.ttft_s * 1e3:>6.0f} ms", style))


def print_outcome(console: Console, outcome: FleetOutcome) -> bool:
    """What the tables mean, times, checks. Returns whether all checks hold."""
    console.print(
        "In each cell: the pod that answered, how many tokens of the prompt it had cached, and how long the client "
        "waited for the first token."
    )
    console.print()
    console.print(_times(outcome))
    _print_comparison(console, outcome)
    console.print()
    checks = check_fleet(outcome)
    for claim, holds in checks:
        console.print(Text.assemble(("✓ ", "green") if holds else ("✗ ", "bold red"), claim))
    return all(holds for _, holds in checks)


def _times(outcome: FleetOutcome) -> Table:
    table = Table(title="time to the first token, and how much was cached")
    table.add_column("")
    for column in ("requests", "cached", "median", "slowest"):
        table.add_column(column, justify="right")
    rows = {
        "cold: each tenant's first": outcome.routed.cold,
        "warm: its later ones": outcome.routed.later,
        "the router, all": outcome.routed.answered,
        "round robin, all": outcome.in_turn.answered,
    }
    for name, served in rows.items():
        times = (f"{time_s * 1e3:.0f} ms" for time_s in (median_ttft_s(served), slowest_ttft_s(served)))
        table.add_row(name, str(len(served)), f"{hit_ratio(served):.0%}", *times)
    return table


def _print_comparison(console: Console, outcome: FleetOutcome) -> None:
    routed, in_turn = outcome.routed, outcome.in_turn
    console.print("Cached: the share of the prompts' tokens that no pod had to compute again.")
    console.print(_compared("a warm prompt", routed.later, "a cold one", routed.cold))
    console.print(_compared("the router", routed.answered, "round robin", in_turn.answered))
    predicted = sum(each.predicted_tokens or 0 for each in routed.answered)
    found = sum(each.cached_tokens for each in routed.answered)
    console.print(f"Cached tokens: {predicted} predicted by the router, {found} found by the pods.")


def _compared(name: str, served: Sequence[Served], other: str, others: Sequence[Served]) -> str:
    """By medians, and as it is: a busy machine may show no difference."""
    one_s, other_s = median_ttft_s(served), median_ttft_s(others)
    if one_s and other_s / one_s >= _NOTICEABLE:
        return f"First token, {name} against {other}: {other_s / one_s:.1f} times as fast."
    return f"First token, {name} against {other}: no faster this time."


def print_next_steps(console: Console, fleet: Fleet, model: str) -> None:
    """Commands that work as they are while the fleet runs."""
    program, router, pod = _program(), fleet.router, fleet.pods[0]
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello"}}], "max_tokens": 20}}'
    commands = [
        f'{program} generate --endpoint {router.address} --chat "Why is the sky blue?" --max-tokens 40',
        f"{program} chat --endpoint {router.address}",
        f"{program} cache verify --endpoint {router.address}",
        f"{program} cache show --endpoint {pod.address}",
        f"curl -s 127.0.0.1:{router.http_port}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        f"kill -9 {pod.process.pid}  # pod a dies; ask again, or while an answer streams: pod b goes on with it",
    ]
    console.print("\nThe pods and the router go on. In another terminal, try:")
    for command in commands:
        console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)
    console.print("Ctrl-C here ends them.")


def _program() -> str:
    """How a shell in this folder calls `headstart`."""
    script = Path(sys.executable).parent / "headstart"
    if not script.exists():
        return f"{sys.executable} -m headstart"
    found = shutil.which("headstart")
    if found is not None and os.path.samefile(found, script):
        return "headstart"
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)
