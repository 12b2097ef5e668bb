"""What the conductor does inside a step: faults, deadlines, stop strings, audits, observers, death."""

import asyncio
import logging

import pytest
from headstart.core.step import Finish, FinishReason, StepPlan
from headstart.engine.messages import DEADLINE_PASSED
from headstart.engine.trace import StepTracer
from headstart.errors import DeadlineExceededError, UnavailableError
from headstart.scheduler.scheduler import Scheduler
from service.engine.harness import Clock, Letters, read, spec, until


class TestFaults:
    async def test_of_one_row_end_that_request_alone(self, start_engine):
        solo = await start_engine()
        requests = [spec(f"r{i}", prompt=range(i, i + 6)) for i in range(8)]
        expected = [(await solo.run(request)).token_ids for request in requests]
        engine = await start_engine()
        engine.runner.faulty_ids.add("r3")
        streams = await engine.handle.submit_all(requests)
        results = await asyncio.gather(*(read(stream) for stream in streams))
        assert results[3].last.finish == Finish(FinishReason.ERROR, error="non-finite logits")
        assert [r.token_ids for i, r in enumerate(results) if i != 3] == [e for i, e in enumerate(expected) if i != 3]
        assert engine.handle.stats.contained_faults == 1

    async def test_of_a_whole_step_end_its_requests_and_leave_nothing_cached(self, start_engine, caplog):
        engine = await start_engine()
        engine.runner.failures_left = 1
        streams = await engine.handle.submit_all([spec(f"r{i}", prompt=range(i, i + 8)) for i in range(3)])
        results = await asyncio.gather(*(read(stream) for stream in streams))
        assert [result.reason for result in results] == ["error"] * 3
        assert engine.handle.mirror.held == {}
        assert engine.handle.stats.contained_faults == 1
        assert "the forward pass broke" in caplog.text
        again = await engine.run(spec("again", prompt=range(8)))
        assert (again.reason, again.last.stats.cached_tokens) == ("length", 0)

    async def test_of_one_decoder_end_that_request_alone(self, start_engine):
        engine = await start_engine(make_stream_decoder=lambda s: Letters(s, fails_after=3 if s.priority else None))
        streams = await engine.handle.submit_all([spec("good"), spec("bad", priority=1)])
        good, bad = await asyncio.gather(*(read(stream) for stream in streams))
        assert (good.reason, len(good.text)) == ("length", 8)
        assert (bad.reason, len(bad.text)) == ("error", 3)
        assert engine.handle.stats.contained_faults == 1


class TestDeath:
    @pytest.fixture
    def broken_scheduler(self):
        class Broken(Scheduler):
            def commit(self, plan, output):
                raise AssertionError("two owners of one block")

        return Broken

    async def test_a_broken_invariant_ends_the_thread_and_every_stream(self, start_engine, broken_scheduler, caplog):
        engine = await start_engine(scheduler_type=broken_scheduler)
        subscription = engine.handle.subscribe()
        engine.runner.hold()
        stream = await engine.handle.submit(spec("r"))
        await until(lambda: engine.runner.is_held)
        waiting = asyncio.ensure_future(engine.handle.submit(spec("waiting")))
        reset = asyncio.ensure_future(engine.handle.reset(force=False))
        await asyncio.sleep(0)
        engine.runner.free()
        assert await engine.handle.wait_exit() is False
        assert isinstance((await read(stream)).error, UnavailableError)
        for asked in (waiting, reset):
            with pytest.raises(UnavailableError):
                await asked
        assert not engine.handle.is_alive
        assert not engine.handle.is_ready
        assert engine.handle.num_in_flight == engine.handle.num_queued == 0
        assert any(record.levelno == logging.CRITICAL for record in caplog.records)
        await subscription.changed()
        for late in (engine.handle.submit(spec("late")), engine.handle.reset(force=True)):
            with pytest.raises(UnavailableError, match="broke down"):
                await late
        await engine.handle.drain()


async def test_work_that_cannot_be_scheduled_looks_stuck_and_can_still_be_cancelled(start_engine):
    class Stuck(Scheduler):
        is_stuck = True

        def schedule(self):
            if not self.is_stuck:
                return super().schedule()
            return StepPlan(step=1, request_ids=[], starts=[], num_tokens=[], new_block_ids=[], samples=[])

    engine = await start_engine(scheduler_type=Stuck)
    stream = await engine.handle.submit(spec())
    await until(lambda: engine.handle.step_age_s > 0.03)  # longer than any wait between two looks at the work
    engine.handle.cancel("r")
    assert (await read(stream)).reason == "cancelled"
    await until(lambda: engine.handle.step_age_s == 0.0)
    engine.scheduler.is_stuck = False
    assert (await engine.run(spec())).reason == "length"


class TestDeadlines:
    async def test_end_a_waiting_and_a_running_request_within_one_step(self, start_engine):
        clock = Clock()
        engine = await start_engine(max_num_seqs=1, clock=clock)
        engine.runner.hold()
        running = await engine.handle.submit(spec("running", max_tokens=100, deadline_s=105.0))
        await until(lambda: engine.runner.is_held)
        asked = asyncio.ensure_future(engine.handle.submit(spec("waiting", deadline_s=104.0)))
        endless = asyncio.ensure_future(engine.handle.submit(spec("patient", deadline_s=1000.0)))
        await asyncio.sleep(0)
        engine.runner.let()
        waiting, patient = await asked, await endless
        clock.now_s = 106.0
        engine.runner.free()
        for stream in (running, waiting):
            assert (await read(stream)).last.finish == DEADLINE_PASSED
        assert (await read(patient)).reason == "length"

    async def test_are_refused_at_once_when_the_queue_would_outlast_them_at_twice_the_best_pace(self, start_engine):
        clock = Clock()
        engine = await start_engine(max_num_seqs=1, budget=1024, num_blocks=600, clock=clock)
        engine.runner.hold()
        leader = asyncio.ensure_future(engine.run(spec("leader", prompt=range(300))))
        await until(lambda: engine.runner.is_held)
        clock.now_s += 30.0  # ten tokens a second
        engine.runner.free()
        await leader
        engine.runner.hold()
        running = asyncio.ensure_future(engine.run(spec("running")))
        await until(lambda: engine.runner.is_held)
        waiting = asyncio.ensure_future(engine.run(spec("waiting", prompt=range(1000, 1040))))
        hopeless = asyncio.ensure_future(
            engine.run(spec("hopeless", prompt=range(2000, 2040), deadline_s=clock.now_s + 3.9))
        )
        in_time = asyncio.ensure_future(
            engine.run(spec("in time", prompt=range(2000, 2040), deadline_s=clock.now_s + 4.1))
        )
        await until(lambda: engine.handle.num_in_flight == 4)
        engine.runner.free()
        with pytest.raises(
            DeadlineExceededError, match=r"^80 prompt tokens .* more than 4 s; the deadline is in 3\.9 s"
        ):
            await hopeless
        assert [(await other).reason for other in (running, waiting, in_time)] == ["length"] * 3
        assert engine.handle.num_in_flight == 0

    async def test_do_not_refuse_while_the_pace_is_unknown(self, start_engine):
        clock = Clock()
        engine = await start_engine(max_num_seqs=1, clock=clock)
        engine.runner.hold()
        running = asyncio.ensure_future(engine.run(spec("running", prompt=range(40))))
        await until(lambda: engine.runner.is_held)
        clock.now_s += 1000.0  # a small step that took long shows no pace
        hasty = asyncio.ensure_future(engine.run(spec("hasty", prompt=range(100, 140), deadline_s=clock.now_s + 0.1)))
        await until(lambda: engine.handle.num_in_flight == 2)
        engine.runner.free()
        assert [(await other).reason for other in (running, hasty)] == ["length"] * 2

    async def test_one_that_has_passed_already_computes_nothing(self, start_engine):
        engine = await start_engine(clock=Clock())
        result = await engine.run(spec(deadline_s=99.0))
        assert result.last.finish == DEADLINE_PASSED
        assert engine.handle.stats.computed_tokens == 0


class TestStopStrings:
    async def test_end_the_request_in_the_step_that_completes_them_and_free_its_blocks(self, start_engine):
        engine = await start_engine(make_stream_decoder=Letters)
        whole = await engine.run(spec("whole", max_tokens=20))
        stop = whole.text[6:8]
        steps_before = len(engine.runner.plans)
        stopped = await engine.run(spec("stopped", max_tokens=20, stop_strings=(stop,)))
        assert stopped.text == whole.text[: whole.text.index(stop)]
        assert (stopped.reason, stopped.last.matched_stop_string) == ("stop", stop)
        assert stopped.last.stats.prompt_tokens == 10
        assert engine.handle.stats.running == 0
        assert engine.pool.num_free == engine.pool.num_blocks
        await until(lambda: not engine.scheduler.has_work)
        rows = [plan.num_rows for plan in engine.runner.plans[steps_before:]]
        assert sum(rows) == whole.text.index(stop) + 2


async def test_an_idle_engine_audits_its_blocks_and_reports_a_leak(start_engine, caplog):
    engine = await start_engine(audit_after_s=0.01)
    await engine.run(spec())
    stolen = engine.pool.take(1)
    await engine.run(spec("next"))
    await until(lambda: engine.handle.stats.leaked_blocks == 1)
    assert "1 blocks are held by nobody" in caplog.text
    engine.pool.release(stolen)


async def test_answers_to_commands_go_out_before_a_long_forward(start_engine):
    engine = await start_engine()
    engine.runner.hold()
    stream = await engine.handle.submit(spec("first"))
    assert engine.handle.load.accepted == ("first",)
    await until(lambda: engine.handle.num_queued == 0)
    engine.runner.free()
    await read(stream)


async def test_an_observer_sees_each_committed_step_in_order(start_engine):
    seen = []

    def observe(plan, output, updates):
        assert output.sampled == updates.new_tokens
        seen.append((plan.step, updates.new_tokens))

    engine = await start_engine(on_step=observe)
    result = await engine.run(spec(max_tokens=3))
    await until(lambda: not engine.scheduler.has_work)
    assert [step for step, _ in seen] == sorted({step for step, _ in seen})
    assert [token for _, rows in seen for tokens in rows for token in tokens] == result.token_ids


async def test_a_tracer_shows_how_steps_were_split_what_is_shared_and_what_was_evicted(start_engine):
    engine = await start_engine(tracer=StepTracer(), num_blocks=12, budget=16)
    engine.runner.hold()
    first = await engine.handle.submit(spec("a", prompt=range(12), max_tokens=12))
    await until(lambda: engine.runner.is_held)
    asked = asyncio.ensure_future(engine.run(spec("b", prompt=[*range(8), *range(60, 80)], max_tokens=2)))
    await asyncio.sleep(0)
    engine.runner.free()
    assert (await asked).last.stats.cached_tokens == 8
    await read(first)
    await engine.run(spec("c", prompt=range(30, 70), max_tokens=2))
    traces = list(engine.handle.traces)
    rows = [row for trace in traces for row in trace.rows if row.request_id == "b"]
    assert (rows[0].start, rows[0].is_decode, rows[-1].is_decode) == (8, False, True)
    mixed = next(trace for trace in traces if len(trace.rows) == 2)
    assert [row.request_id for row in mixed.rows] == ["a", "b"]
    assert list(mixed.shared.values()) == [("a", "b")] * 2
    assert any(trace.evicted for trace in traces)
