"""Work that must never end is begun anew whatever ends it, is told of, and stops when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from headstart_operator import supervisor
from headstart_operator.supervisor import keep_running


def _break() -> None:
    raise ZeroDivisionError


def _leave_off() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("end", "told"), [(_break, "ZeroDivisionError"), (_leave_off, "was broken off"), (lambda: None, "has ended")]
)
async def test_work_that_ends_is_told_of_and_begun_anew(
    end: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.0)
    begun = asyncio.Event()
    num_begun = 0

    async def work() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun < 3:
            end()
            return
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running(work, "counting"))
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert num_begun == 3
    assert told in caplog.text
    assert "counting" in caplog.text
