"""Hundreds of requests that end in every way at once: each stream ends once, and nothing is left of any."""

import asyncio
import random

import pytest
from headstart.errors import AlreadyExistsError, DeadlineExceededError, UnavailableError
from service.engine.harness import Letters, Read, read, spec


async def one(engine, rng, number):
    """Submit a request and end it in one of seven ways. Returns what it was told, None when its reader left."""
    way = rng.choice(["finish", "finish", "stop", "cancel", "leave", "late", "fault"])
    request = spec(
        f"{way}{number}",
        prompt=[rng.randrange(3) for _ in range(rng.randrange(1, 40))],
        max_tokens=rng.randrange(1, 40),
        stop_strings=("e", "xy") if way == "stop" else (),
        deadline_s=engine.loop.clock() + rng.random() * 0.02 if way == "late" else None,
    )
    if way == "fault":
        engine.runner.faulty_ids.add(request.request_id)
    try:
        stream = await engine.handle.submit(request)
    except DeadlineExceededError as error:
        return way, Read(error=error)
    if way == "leave":
        if rng.random() < 0.5:
            await anext(stream)
        await stream.aclose()
        return None
    if way == "cancel":
        await asyncio.sleep(rng.random() * 0.01)
        engine.handle.cancel(request.request_id)
    return way, await read(stream)


@pytest.mark.parametrize("seed", range(3))
async def test_every_way_to_end_ends_once_and_leaves_nothing(start_engine, seed):
    engine = await start_engine(num_blocks=40, budget=48, max_num_seqs=12, make_stream_decoder=Letters)
    rng = random.Random(seed)

    async def reset_now_and_then():
        for _ in range(10):
            await asyncio.sleep(0.01)
            await engine.handle.reset(force=True)

    resets = asyncio.ensure_future(reset_now_and_then())
    told = await asyncio.gather(*(one(engine, rng, number) for number in range(300)))
    await resets
    allowed = {
        "finish": {"length"},
        "stop": {"length", "stop"},
        "cancel": {"length", "cancelled"},
        "late": {"length", "cancelled"},
        "fault": {"error"},
    }
    for way, result in filter(None, told):
        if result.error is not None:
            assert way == "late"
            continue
        assert [chunk for chunk in result.chunks if chunk.finish is not None] == [result.last]
        # A row that shared a prefix with a faulty one in the step of the fault ends with it.
        assert result.reason in allowed[way] | {"error"}
    assert {result.reason for _, result in filter(None, told) if not result.error} == {
        "length",
        "stop",
        "cancelled",
        "error",
    }


async def test_a_full_queue_turns_callers_away_and_serves_the_rest(start_engine):
    engine = await start_engine(max_num_seqs=4, max_queued_requests=8)

    async def call(number):
        try:
            return (await engine.run(spec(f"r{number % 60}"))).reason
        except (UnavailableError, AlreadyExistsError) as error:
            return error.status

    outcomes = await asyncio.gather(*(call(number) for number in range(200)))
    assert outcomes.count("length") >= 8
    assert outcomes.count("UNAVAILABLE") > 0
    assert set(outcomes) <= {"length", "UNAVAILABLE", "ALREADY_EXISTS"}
