"""Requests, cancellation, draining, resets and bounds, through the handle and a real engine thread."""

import asyncio
import time
from contextlib import suppress

import pytest
from headstart.cache.log import EventLog
from headstart.core.step import FinishReason
from headstart.engine.decoder import Decoder
from headstart.engine.handle import EngineHandle
from headstart.engine.loop import EngineLoop, EngineParts
from headstart.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    UnavailableError,
)
from service.engine.harness import HeldRunner, read, spec, until


async def test_a_request_streams_its_tokens_and_ends_once(start_engine):
    engine = await start_engine()
    result = await engine.run(spec(max_tokens=5))
    assert result.reason == "length"
    assert len(result.token_ids) == 5
    assert [chunk.finish for chunk in result.chunks[:-1]] == [None] * (len(result.chunks) - 1)
    assert result.last.stats.prompt_tokens == 10


async def test_many_concurrent_requests_equal_their_solo_runs(start_engine):
    requests = [spec(f"r{i}", prompt=range(i % 5, i % 5 + 20), max_tokens=1 + i % 13) for i in range(40)]
    alone = await start_engine()
    expected = [(await alone.run(request)).token_ids for request in requests]
    together = await start_engine(num_blocks=40, budget=32)
    streams = await asyncio.gather(*(together.handle.submit(request) for request in requests))
    results = await asyncio.gather(*(read(stream) for stream in streams))
    assert [result.token_ids for result in results] == expected


async def test_siblings_submitted_together_start_in_one_step_and_share_their_prompt(start_engine):
    engine = await start_engine()
    choices = [spec(f"r-{i}", prompt=range(16), choice_index=i) for i in range(3)]
    streams = await engine.handle.submit_all(choices)
    results = await asyncio.gather(*(read(stream) for stream in streams))
    first = next(plan for plan in engine.runner.plans if plan.num_rows)
    assert sorted(first.num_tokens) == [1, 1, 16]
    assert [result.last.stats.cached_tokens for result in results] == [0, 15, 15]


async def test_of_siblings_all_or_none_are_taken(start_engine):
    engine = await start_engine()
    with pytest.raises(InvalidRequestError):
        await engine.handle.submit_all([spec("a"), spec("b", prompt=range(5000))])
    await until(lambda: engine.handle.num_in_flight == 0)


async def test_a_prompt_that_never_fits_is_refused_and_the_next_request_works(start_engine):
    engine = await start_engine(num_blocks=4)
    with pytest.raises(InvalidRequestError) as caught:
        await engine.handle.submit(spec("long", prompt=range(16)))
    assert caught.value.field == "prompt"
    assert (await engine.run(spec("short"))).reason == "length"


async def test_a_running_id_is_refused_and_free_again_afterwards(start_engine):
    engine = await start_engine()
    engine.runner.hold()
    stream = await engine.handle.submit(spec("same"))
    with pytest.raises(AlreadyExistsError):
        await engine.handle.submit(spec("same"))
    with pytest.raises(AlreadyExistsError):
        await engine.handle.submit_all([spec("twin"), spec("twin")])
    engine.runner.free()
    await read(stream)
    assert (await engine.run(spec("same"))).reason == "length"


async def test_an_id_is_not_free_while_any_of_its_choices_runs(start_engine):
    engine = await start_engine()
    engine.runner.hold()
    first, second = await engine.handle.submit_all([spec("same", max_tokens=1), spec("same#1", max_tokens=50)])
    await engine.step()
    await engine.step()
    await read(first)
    with pytest.raises(AlreadyExistsError, match="'same' is still running"):
        await engine.handle.submit(spec("same"))
    engine.runner.free()
    assert (await read(second)).reason == "length"
    assert (await engine.run(spec("same"))).reason == "length"


async def test_stop_strings_without_a_tokenizer_are_refused(start_engine):
    engine = await start_engine()
    with pytest.raises(InvalidRequestError, match="stop_strings"):
        await engine.handle.submit(spec(stop_strings=("x",)))


async def test_resumed_tokens_are_not_sent_again_but_count(start_engine):
    engine = await start_engine()
    whole = await engine.run(spec("whole", max_tokens=8))
    rest = await engine.run(spec("rest", max_tokens=8, resume_token_ids=tuple(whole.token_ids[:5])))
    assert rest.token_ids == whole.token_ids[5:]
    assert rest.reason == "length"


async def test_prompt_logprobs_come_once_whatever_was_preempted(start_engine):
    engine = await start_engine(num_blocks=10, budget=8)
    requests = [spec(f"r{i}", prompt=range(i, i + 14), max_tokens=20, prompt_logprobs=0) for i in (0, 20, 40)]
    streams = await engine.handle.submit_all(requests)
    for request, result in zip(requests, await asyncio.gather(*(read(s) for s in streams)), strict=True):
        scored = [entry.token_id for chunk in result.chunks for entry in chunk.prompt_logprobs]
        assert scored == list(request.prompt_token_ids[1:])
        assert len(result.token_ids) == 20
    assert engine.handle.stats.num_preemptions > 0


class TestCancel:
    async def test_while_waiting(self, start_engine):
        engine = await start_engine(max_num_seqs=1)
        engine.runner.hold()
        first = await engine.handle.submit(spec("first"))
        await until(lambda: engine.runner.is_held)
        waiting = asyncio.ensure_future(engine.handle.submit(spec("second")))
        await asyncio.sleep(0)
        engine.handle.cancel("second")
        engine.runner.free()
        result = await read(await waiting)
        assert (result.reason, result.token_ids) == ("cancelled", [])
        assert (await read(first)).reason == "length"

    async def test_between_two_chunks_of_a_prefill_frees_the_blocks_within_one_step(self, start_engine):
        engine = await start_engine(budget=8)
        engine.runner.hold()
        stream = await engine.handle.submit(spec(prompt=range(32)))
        await engine.step()
        engine.handle.cancel("r")
        engine.handle.cancel("r")
        engine.runner.let()
        result = await read(stream)
        assert result.reason == "cancelled"
        assert len([plan for plan in engine.runner.plans if plan.num_rows]) == 2
        assert engine.pool.num_free == engine.pool.num_blocks

    async def test_while_decoding_keeps_what_was_delivered(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        stream = await engine.handle.submit(spec(max_tokens=100))
        for _ in range(3):
            await engine.step()
        engine.handle.cancel("r")
        engine.runner.free()
        result = await read(stream)
        assert result.reason == "cancelled"
        assert len(result.token_ids) == 4
        assert result.last.finish.error == ""

    async def test_while_preempted(self, start_engine):
        engine = await start_engine(num_blocks=8)
        engine.runner.hold()
        requests = [spec(f"r{i}", prompt=range(i, i + 12), max_tokens=18) for i in (0, 50)]
        readers = [asyncio.ensure_future(read(s)) for s in await engine.handle.submit_all(requests)]
        while engine.scheduler.stats.num_preemptions == 0:
            await engine.step()
        engine.handle.cancel("r50")
        engine.runner.free()
        first, preempted = [await reader for reader in readers]
        assert (first.reason, len(first.token_ids)) == ("length", 18)
        assert (preempted.reason, preempted.last.stats.num_preemptions) == ("cancelled", 1)

    async def test_in_the_step_that_finishes_it_gives_one_end(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        stream = await engine.handle.submit(spec(max_tokens=1))
        await until(lambda: engine.runner.is_held)
        engine.handle.cancel("r")
        engine.runner.free()
        result = await read(stream)
        assert result.reason == "length"
        assert sum(chunk.finish is not None for chunk in result.chunks) == 1

    async def test_finished_and_unknown_ids_change_nothing(self, start_engine):
        engine = await start_engine()
        await engine.run(spec())
        engine.handle.cancel("r")
        engine.handle.cancel("never heard of")
        assert (await engine.run(spec("next"))).reason == "length"

    async def test_a_reader_that_walks_away_cancels(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        stream = await engine.handle.submit(spec(max_tokens=1000))
        engine.runner.let(2)
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        engine.runner.free()
        await until(lambda: engine.handle.num_in_flight == 0)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    async def test_a_submit_that_is_given_up_leaves_nothing(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        first = await engine.handle.submit(spec("first"))
        await until(lambda: engine.runner.is_held)
        given_up = asyncio.ensure_future(engine.handle.submit(spec("second", max_tokens=1000)))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        engine.runner.free()
        await read(first)
        await until(lambda: engine.handle.num_in_flight == 0)


async def test_a_slow_reader_gets_every_token_once_in_one_chunk(start_engine):
    engine = await start_engine()
    slow = await engine.handle.submit(spec("slow", max_tokens=40, logprobs=1))
    others = [await engine.run(spec(f"fast{i}", max_tokens=40)) for i in range(3)]
    await until(lambda: engine.handle.num_in_flight == 0)
    result = await read(slow)
    assert len(result.chunks) == 1
    assert result.token_ids == others[0].token_ids
    assert [entry.token_id for entry in result.last.logprobs] == result.token_ids


class TestQueueBounds:
    async def test_more_than_the_queue_takes_is_refused_with_a_time_to_retry(self, start_engine):
        engine = await start_engine(max_num_seqs=1, max_queued_requests=4)
        engine.runner.hold()
        running = await engine.handle.submit(spec("running"))
        await until(lambda: engine.handle.num_queued == 0)
        attempts = [asyncio.ensure_future(engine.handle.submit(spec(f"r{i}"))) for i in range(12)]
        await asyncio.sleep(0)
        refused = [attempt for attempt in attempts if attempt.done()]
        assert len(refused) == 8
        for attempt in refused:
            error = attempt.exception()
            assert isinstance(error, UnavailableError)
            assert error.retry_after_s > 0
        engine.runner.free()
        taken = [await attempt for attempt in attempts if attempt not in refused]
        assert [(await read(stream)).reason for stream in [running, *taken]] == ["length"] * 5

    async def test_tokens_count_too_but_an_empty_queue_takes_any_request(self, start_engine):
        engine = await start_engine(max_num_seqs=1, max_queued_tokens=15)
        engine.runner.hold()
        running = await engine.handle.submit(spec("running", prompt=range(20)))
        await until(lambda: engine.handle.num_queued == 0)
        waiting = asyncio.ensure_future(engine.handle.submit(spec("waiting")))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await engine.handle.submit(spec("refused"))
        engine.runner.free()
        await read(running)
        await read(await waiting)


class TestReset:
    async def test_an_idle_engine_publishes_it_at_once(self, start_engine):
        engine = await start_engine()
        await engine.run(spec())
        assert engine.handle.mirror.held
        held = len(engine.handle.mirror.held)
        assert await engine.handle.reset(force=False) == held
        assert engine.handle.mirror.held == {}
        again = await engine.run(spec("again"))
        assert again.last.stats.cached_tokens == 0

    async def test_a_busy_engine_refuses_it_unless_forced(self, start_engine):
        engine = await start_engine()
        expected = (await engine.run(spec("solo", max_tokens=12))).token_ids
        engine.runner.hold()
        stream = await engine.handle.submit(spec(max_tokens=12))
        await engine.step()
        await engine.step()
        refused = asyncio.ensure_future(engine.handle.reset(force=False))
        forced = asyncio.ensure_future(engine.handle.reset(force=True))
        await asyncio.sleep(0)
        engine.runner.free()
        with pytest.raises(FailedPreconditionError):
            await refused
        assert await forced > 0
        result = await read(stream)
        assert result.token_ids == expected
        assert result.last.stats.num_preemptions == 1


class TestDrain:
    async def test_refuses_new_work_and_returns_when_the_old_has_ended(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        stream = await engine.handle.submit(spec())
        draining = asyncio.ensure_future(engine.handle.drain())
        await asyncio.sleep(0)
        assert not engine.handle.is_ready
        assert engine.handle.load.draining
        with pytest.raises(UnavailableError, match="draining"):
            await engine.handle.submit(spec("late"))
        assert not draining.done()
        engine.runner.free()
        await draining
        assert (await read(stream)).reason == "length"

    async def test_close_ends_what_is_left_as_cancelled(self, start_engine):
        engine = await start_engine(max_num_seqs=1)
        engine.runner.hold()
        streams = [await engine.handle.submit(spec("running", max_tokens=1000))]
        waiting = asyncio.ensure_future(engine.handle.submit(spec("waiting")))
        await asyncio.sleep(0)
        engine.runner.let()
        streams.append(await waiting)
        closing = asyncio.ensure_future(engine.handle.close())
        await asyncio.sleep(0)  # the order to stop is queued before the step in progress may end
        engine.runner.free()
        await closing
        assert [(await read(stream)).reason for stream in streams] == ["cancelled", "cancelled"]
        assert not engine.handle.is_alive
        assert await engine.handle.wait_exit() is True
        with pytest.raises(UnavailableError, match="stopped"):
            await engine.handle.submit(spec("late"))

    async def test_close_does_not_wait_for_a_stuck_step(self, start_engine):
        engine = await start_engine()
        engine.runner.hold()
        stream = await engine.handle.submit(spec())
        await until(lambda: engine.runner.is_held)
        await engine.handle.close(timeout_s=0.01)
        assert isinstance((await read(stream)).error, UnavailableError)
        engine.runner.free()
        await engine.handle.wait_exit()


async def test_a_warm_up_comes_before_readiness_and_measures_the_rates(start_engine):
    engine = await start_engine(warm_up=spec("warm-up", prompt=range(2), max_tokens=2))
    assert engine.handle.is_ready
    assert engine.handle.load.prefill_tokens_per_s > 0
    assert engine.handle.load.decode_step_s > 0
    assert engine.handle.mirror.held == {}


async def test_a_pod_that_still_loads_says_so():
    loop = EngineLoop(EngineParts(scheduler=None, runner=HeldRunner(), decoder=Decoder(None), log=EventLog()))
    handle = EngineHandle(loop, max_queued_requests=1, max_queued_tokens=1)
    assert not handle.is_alive
    for asked in (handle.submit(spec()), handle.reset(force=True)):
        with pytest.raises(UnavailableError, match="loading"):
            await asked
    await handle.close()


async def test_a_failing_warm_up_fails_the_start(start_engine):
    runner = HeldRunner()
    runner.failures_left = 1
    with pytest.raises(InternalError, match="warm-up"):
        await start_engine(runner=runner, warm_up=spec("warm-up"))


async def test_load_names_each_accepted_request_and_ends_at_zero(start_engine):
    engine = await start_engine()
    subscription = engine.handle.subscribe()
    for index in range(5):
        await engine.run(spec(f"r{index}"))
    await subscription.changed()
    assert subscription.take_accepted() == [f"r{index}" for index in range(5)]
    assert subscription.take_accepted() == []
    load = engine.handle.load
    assert (load.running, load.waiting, load.pending_prefill_tokens) == (0, 0, 0)
    assert load.seq == engine.handle.mirror.seq
    subscription.close()
    await subscription.changed()


async def test_stats_add_up_and_name_the_faults(start_engine):
    engine = await start_engine()
    engine.runner.faulty_ids.add("bad")
    assert (await engine.run(spec("bad"))).reason == FinishReason.ERROR
    await engine.run(spec("good"))
    stats = engine.handle.stats
    assert stats.contained_faults == 1
    assert stats.referenced_blocks + stats.cached_blocks + stats.free_blocks == 64
    assert (stats.running, stats.waiting, stats.leaked_blocks) == (0, 0, 0)


async def test_the_age_of_a_step_grows_while_it_is_stuck_and_is_zero_when_idle(start_engine):
    engine = await start_engine()
    assert engine.handle.step_age_s == 0.0
    engine.runner.hold()
    stream = await engine.handle.submit(spec())
    await until(lambda: engine.runner.is_held)
    started = time.monotonic()
    await until(lambda: engine.handle.step_age_s > 0.005)
    assert engine.handle.is_alive
    assert engine.handle.load.step_age_s <= time.monotonic() - started + 60
    engine.runner.free()
    await read(stream)
    await until(lambda: engine.handle.step_age_s == 0.0)
