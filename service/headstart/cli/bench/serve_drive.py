"""Plays a workload's requests against a client and writes down when each token came.

Knows neither the engine nor the wire. Owner of the timelines while they fill up: `play`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from headstart.cli.bench.serve_metrics import Timeline
from headstart.cli.bench.serve_workloads import LATE_AFTER_TOKENS, Ask


class Client(Protocol):
    """A way to an engine. `limits` are those of the model behind it."""

    async def limits(self) -> ModelLimits: ...

    def stream(self, ask: Ask) -> AsyncGenerator[int, None]:
        """Run a request; gives the number of tokens that each message brought."""
        ...

    async def close(self) -> None: ...


class ModelLimits(NamedTuple):
    """Tokens of the longest request, and size of the vocabulary; None where the server does not say."""

    max_len: int | None
    vocab_size: int | None


class Played(NamedTuple):
    timelines: list[Timeline]
    start_s: float
    end_s: float


async def play(client: Client, asks: Sequence[Ask]) -> Played:
    """Send all requests at once, the late ones when the others decode; returns when all have ended.

    Raises what the first failing request raised; the others are then given up.
    """
    timelines = [Timeline(ask) for ask in asks]
    others = [timeline for timeline in timelines if not timeline.ask.is_late]
    are_decoding = asyncio.Event()

    async def follow(timeline: Timeline) -> None:
        if timeline.ask.is_late:
            await are_decoding.wait()
        timeline.submit_s = time.perf_counter()
        async with aclosing(client.stream(timeline.ask)) as messages:
            async for num_tokens in messages:
                timeline.token_s.extend([time.perf_counter()] * num_tokens)
                if not are_decoding.is_set() and all(len(each.token_s) >= LATE_AFTER_TOKENS for each in others):
                    are_decoding.set()

    start_s = time.perf_counter()
    await _gather(follow(timeline) for timeline in timelines)
    return Played(timelines, start_s, time.perf_counter())


async def _gather(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of them; when one fails the others are cancelled and its own error is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
