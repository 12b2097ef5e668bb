"""Preemption by recompute: who gives way, what is undone, that nothing is lost, that it ends."""

from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.waiting import AGING_STEPS
from support.chain import Chain, spec


def chain(usable: int = 10, **limits: object) -> Chain:
    return Chain(usable=usable, limits=SchedulerLimits(**limits))  # type: ignore[arg-type]


def priority(usable: int = 10, **limits: object) -> Chain:
    return chain(usable, policy="priority", **limits)


def test_the_last_of_the_running_gives_way_and_resumes_from_its_surviving_blocks() -> None:
    bench = chain(watermark=0.0)
    bench.add(spec("a", 80, max_tokens=10), spec("b", 80, first=1000, max_tokens=40))
    assert bench.step() == {"a": 80, "b": 80}
    assert bench.step() == {"a": 1}
    assert bench.scheduler.stats.num_preemptions == 1
    assert bench.scheduler.stats.waiting == 1
    resumed = next(step["b"] for step in bench.run() if "b" in step)
    assert resumed == 17
    large = chain(usable=100)
    large.add(spec("a", 80, max_tokens=10), spec("b", 80, first=1000, max_tokens=40))
    large.run()
    assert bench.outputs == large.outputs
    stats = bench.scheduler.stats
    assert (stats.hit_tokens, stats.requeried_tokens, stats.rehit_tokens) == (0, 81, 64)


def test_what_the_client_is_told_to_be_cached_is_the_first_hit_only() -> None:
    bench = chain(watermark=0.0)
    bench.add(spec("a", 80, max_tokens=40), spec("b", 80, first=1000, max_tokens=3))
    cached = {}
    while bench.scheduler.stats.running or bench.scheduler.stats.waiting:
        bench.schedule()
        cached |= {name: stats for name, (_, stats) in bench.commit().finished.items()}
    assert cached["b"].num_preemptions >= 1
    assert cached["b"].cached_tokens == 0


def test_nobody_waiting_is_admitted_in_the_step_of_a_preemption() -> None:
    bench = chain(watermark=0.0)
    bench.add(spec("a", 80), spec("b", 80, first=1000))
    bench.step()
    bench.add(spec("tiny", 1, first=5000))
    assert bench.step() == {"a": 1}
    assert bench.scheduler.stats.num_preemptions == 1


def test_not_even_a_higher_priority_is_admitted_beside_a_preemption_it_did_not_cause() -> None:
    bench = priority(watermark=0.0)
    bench.add(spec("a", 80, priority=5), spec("b", 80, first=1000, priority=5))
    bench.step()
    bench.add(spec("high", 1, first=5000, priority=0))
    assert bench.step() == {"a": 1}
    assert "high" in bench.step()


def test_a_request_whose_blocks_another_hit_in_this_step_does_not_make_way() -> None:
    bench = priority(usable=20, long_prefill_token_threshold=32, watermark=0.0)
    bench.add(spec("decoding", 5, first=9000, priority=0), spec("lender", 160, priority=9))
    assert bench.step() == {"decoding": 5, "lender": 32}
    bench.add(spec("heir", [*range(96), *range(700, 711)], priority=5), spec("other", 150, first=2000, priority=6))
    assert bench.step() == {"decoding": 1, "lender": 32, "heir": 32}
    assert bench.scheduler.stats.num_preemptions == 0


def test_a_planned_victim_is_taken_out_whole_and_nobody_behind_it_is_skipped() -> None:
    bench = priority(usable=8, watermark=0.0)
    bench.add(
        spec("low a", 31, priority=5),
        spec("low b", 31, first=1000, priority=5),
        spec("high", 63, first=2000, priority=1),
    )
    bench.step()
    bench.step()
    # Both low requests and the high one stand at an edge now; the pool is full.
    assert bench.pool.num_free == 0
    planned = bench.schedule()
    plan = bench.plan
    assert plan is not None
    assert "low b" not in planned
    assert planned == {"low a": 1, "high": 1}
    assert plan.total_tokens == 2
    assert "low b" in plan.finished
    bench.commit()
    bench.events()
    assert bench.view == bench.truth()


def test_the_registrations_of_a_withdrawn_row_are_undone() -> None:
    bench = priority(usable=4, watermark=0.0)
    bench.add(spec("low", 31, priority=5))
    bench.step()
    bench.events()
    bench.step()
    bench.events()
    held = set(bench.view)
    bench.add(spec("high", 47, first=1000, priority=0))
    planned = bench.schedule()
    assert planned == {"high": 47}
    bench.commit()
    bench.events()
    assert bench.view == bench.truth()
    assert len(held) == 2


def test_a_row_whose_new_blocks_others_hit_in_this_step_is_no_victim() -> None:
    bench = chain(usable=12, max_num_batched_tokens=96, long_prefill_token_threshold=32, watermark=0.0)
    bench.add(spec("lender", 96), spec("heir", 97))
    for _ in range(30):
        planned = bench.schedule()
        for request in bench.scheduler._running:
            assert not request.table.is_lender or request.request_id in planned
        bench.commit()
        bench.events()
        assert bench.view == bench.truth()
        bench.pool.audit()


def test_the_next_one_gives_way_instead_of_a_lender() -> None:
    for bench in (chain(), priority()):
        bench.add(spec("a", 5, priority=1), spec("b", 5, first=100, priority=9))
        bench.step()
        a, b = bench.scheduler._running
        assert bench.scheduler._victim() is b
        b.table.is_lender = True
        assert bench.scheduler._victim() is a


def test_preemption_and_resumption_make_progress() -> None:
    bench = chain(usable=7, watermark=0.0)
    bench.add(*(spec(name, 40, first=1000 * place, max_tokens=60) for place, name in enumerate("abc")))
    bench.run(limit=600)
    assert all(len(tokens) == 60 for tokens in bench.outputs.values())
    assert all(tokens == [50_000 + 40 + k for k in range(60)] for tokens in bench.outputs.values())


def test_a_preempted_request_precedes_those_that_never_started() -> None:
    bench = chain(watermark=0.0)
    bench.add(spec("a", 80), spec("b", 80, first=1000), spec("never", 20, first=3000))
    bench.step()
    bench.step()
    assert [request.request_id for request in bench.scheduler._waiting] == ["b", "never"]


def test_priorities_are_served_smallest_first_and_ties_by_arrival() -> None:
    bench = priority(max_num_seqs=1)
    for name, level in (("0", 2), ("1", 0), ("2", 1), ("3", 1)):
        bench.add(spec(name, 5, first=int(name) * 100, priority=level, max_tokens=1))
    assert [next(iter(step)) for step in bench.run()] == ["1", "2", "3", "0"]
    plain = chain(max_num_seqs=1)
    for name, level in (("0", 2), ("1", 0)):
        plain.add(spec(name, 5, first=int(name) * 100, priority=level, max_tokens=1))
    assert [next(iter(step)) for step in plain.run()] == ["0", "1"]


def test_a_higher_priority_takes_the_blocks_of_a_lower_one_when_it_must() -> None:
    bench = priority(usable=5, watermark=0.0)
    bench.add(spec("low", 32, priority=5))
    assert bench.step() == {"low": 32}
    bench.add(spec("high", 32, first=1000, priority=0))
    assert bench.step() == {"low": 1, "high": 32}
    assert bench.step() == {"high": 1}
    assert bench.scheduler.stats.waiting == 1


def test_a_higher_priority_gets_a_slot_within_three_steps() -> None:
    bench = priority(usable=100, max_num_seqs=2)
    bench.add(spec("low a", 20, priority=5, max_tokens=500), spec("low b", 20, first=100, priority=5, max_tokens=500))
    for _ in range(50):
        bench.step()
    bench.add(spec("high", 10, first=1000, priority=0, max_tokens=3))
    for _ in range(3):
        bench.step()
    assert bench.outputs["high"]
    bench.run()
    assert bench.outputs["low b"] == [50_000 + 20 + k for k in range(500)]


def test_a_long_prompt_takes_the_place_of_an_unfinished_lower_one() -> None:
    bench = priority(usable=100, max_num_seqs=1, max_num_batched_tokens=64, max_partial_prefills=1)
    bench.add(spec("low", 500, priority=5))
    assert bench.step() == {"low": 64}
    bench.add(spec("high", 400, first=1000, priority=0))
    assert bench.step() == {"high": 64}


def test_a_high_prompt_is_not_locked_out_by_unfinished_lower_ones() -> None:
    for usable, max_num_seqs in ((5000, 4), (5000, 64), (1000, 64)):
        bench = priority(
            usable=usable, max_num_seqs=max_num_seqs, max_num_batched_tokens=256, long_prefill_token_threshold=64
        )
        bench.add(*(spec(f"low {place}", 3900, first=5000 * place, priority=5) for place in range(4)))
        for _ in range(3):
            bench.step()
        bench.add(spec("high", 300, first=90_000, priority=0, max_tokens=2))
        waited = 0
        while "high" not in bench.step():
            waited += 1
        assert waited <= 2


def test_an_equal_priority_never_preempts_to_be_admitted() -> None:
    bench = priority(max_num_seqs=1)
    bench.add(spec("a", 20, priority=1))
    bench.step()
    bench.add(spec("b", 20, first=100, priority=1))
    for _ in range(10):
        assert list(bench.step()) == ["a"]


def test_a_budget_that_lower_requests_use_up_is_taken_from_them() -> None:
    bench = priority(usable=100, max_num_batched_tokens=4, max_num_seqs=8)
    bench.add(*(spec(f"low {n}", 1, first=100 * n, priority=5) for n in range(4)))
    assert len(bench.step()) == 4
    bench.add(spec("high", 1, first=5000, priority=0))
    assert "high" in bench.step()


def test_nobody_is_preempted_for_a_request_that_would_still_not_fit() -> None:
    bench = priority(usable=10, watermark=0.0)
    bench.add(spec("top", 100, priority=0), spec("low", 40, first=1000, priority=5))
    bench.step()
    bench.add(spec("high", 120, first=3000, priority=1))
    for _ in range(5):
        assert bench.step() == {"top": 1, "low": 1}
    assert bench.scheduler.stats.num_preemptions == 0


def test_the_watermark_is_kept_when_others_must_make_way() -> None:
    bench = priority(usable=20, watermark=0.2)
    bench.add(spec("top", 120, priority=0), spec("low", 60, first=1000, priority=5))
    bench.step()
    bench.add(spec("high", 150, first=3000, priority=1))
    assert bench.step() == {"top": 1, "low": 1}
    assert bench.scheduler.stats.num_preemptions == 0


def test_a_preempted_request_precedes_an_older_one_that_was_stepped_over() -> None:
    bench = chain(usable=60, max_num_batched_tokens=64, long_prefill_token_threshold=32, max_partial_prefills=1)
    bench.add(spec("long", 300), spec("never", 300, first=1000), spec("short", 10, first=3000))
    assert bench.step() == {"long": 32, "short": 10}
    bench.scheduler.reset(force=True)
    assert [request.request_id for request in bench.scheduler._waiting] == ["long", "short", "never"]


def test_a_low_request_gets_a_step_within_the_aging_bound() -> None:
    bench = priority(usable=20, max_num_seqs=1)
    bench.add(spec("low", 10, priority=9, max_tokens=4))
    gaps, gap = [], 0
    for number in range(40 * AGING_STEPS):
        if number % 2 == 0:
            bench.add(spec(f"high {number}", 5, first=1000, priority=0, max_tokens=2))
        planned = bench.step()
        assert not (gap == 0 and number and "low" in planned), "one step is all that it is owed"
        gap = 0 if "low" in planned else gap + 1
        gaps.append(gap)
        if len(bench.outputs.get("low", [])) == 4:
            break
    assert len(bench.outputs["low"]) == 4
    assert max(gaps) <= AGING_STEPS + 2


def test_a_guess_is_dropped_before_anybody_is_preempted_for_it() -> None:
    bench = chain(usable=2, watermark=0.0)
    bench.add(spec("a", 14), spec("b", 14, first=1000))
    bench.schedule()
    bench.commit(drafts={0: [1, 2, 3], 1: [1, 2, 3]})
    assert bench.step() == {"a": 1, "b": 1}
    assert bench.scheduler.stats.num_preemptions == 0
