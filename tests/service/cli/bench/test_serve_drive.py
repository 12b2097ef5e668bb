"""How a workload is played: who is sent when, and what one failure does to the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from headstart.cli.bench.serve_drive import ModelLimits, play
from headstart.cli.bench.serve_workloads import LATE_AFTER_TOKENS, Ask
from headstart.errors import UnavailableError

pytestmark = pytest.mark.timeout(20)


class TokenByToken:
    """Gives a token when the event loop comes round; fails where it is told. `log` has (name, tokens so far)."""

    def __init__(self, failing: str = "", tokens_at_once: int = 1) -> None:
        self.log: list[tuple[str, int]] = []
        self.closed: list[str] = []
        self._failing = failing
        self._at_once = tokens_at_once

    async def limits(self) -> ModelLimits:
        return ModelLimits(None, None)

    async def stream(self, ask: Ask) -> AsyncGenerator[int, None]:
        try:
            for number in range(0, ask.num_output, self._at_once):
                await asyncio.sleep(0)
                if ask.name == self._failing:
                    raise UnavailableError("not now")
                self.log.append((ask.name, number + self._at_once))
                yield self._at_once
        finally:
            self.closed.append(ask.name)

    async def close(self) -> None:
        """Nothing is open."""


async def test_every_token_gets_a_time_also_when_several_come_at_once() -> None:
    played = await play(TokenByToken(tokens_at_once=4), [Ask("a", [1], 8), Ask("b", [2], 8)])
    assert [len(timeline.token_s) for timeline in played.timelines] == [8, 8]
    for timeline in played.timelines:
        assert played.start_s <= timeline.submit_s <= timeline.token_s[0]
        assert timeline.token_s == sorted(timeline.token_s)
        assert timeline.token_s[-1] <= played.end_s


async def test_the_late_request_is_sent_once_every_other_one_decodes() -> None:
    client = TokenByToken()
    slow, quick = Ask("slow", [1], LATE_AFTER_TOKENS + 9), Ask("quick", [1], LATE_AFTER_TOKENS + 9)
    played = await play(client, [slow, Ask("late", [1], 2, is_late=True), quick])
    before = [name for name, _ in client.log[: client.log.index(("late", 1))]]
    assert min(before.count("slow"), before.count("quick")) >= LATE_AFTER_TOKENS
    assert before.count("slow") < slow.num_output
    late = played.timelines[1]
    assert late.submit_s >= played.timelines[0].token_s[LATE_AFTER_TOKENS - 1]


async def test_a_failing_request_ends_the_others_and_is_what_is_raised() -> None:
    client = TokenByToken(failing="bad")
    with pytest.raises(UnavailableError, match="not now"):
        await play(client, [Ask("endless", [1], 10**9), Ask("bad", [1], 5), Ask("late", [1], 1, is_late=True)])
    assert sorted(client.closed) == ["bad", "endless"]
