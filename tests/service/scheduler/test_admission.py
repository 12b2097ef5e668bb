"""Who is admitted: feasible or refused, the whole prompt or not at all, prefix hits, counted once."""

import pytest
from headstart.contract.request import SamplingParams
from headstart.errors import AlreadyExistsError, InvalidRequestError
from headstart.scheduler.limits import SchedulerLimits
from support.chain import Chain, spec


def chain(usable: int = 10, **limits: object) -> Chain:
    return Chain(usable=usable, limits=SchedulerLimits(**limits))  # type: ignore[arg-type]


def test_a_request_that_can_never_fit_is_refused_with_a_reason() -> None:
    bench = chain()
    with pytest.raises(InvalidRequestError, match=r"prompt: has 200 tokens.*160"):
        bench.add(spec("a", 200))
    with pytest.raises(InvalidRequestError, match="prompt"):
        bench.add(spec("a", 160))
    with pytest.raises(InvalidRequestError, match="empty"):
        bench.add(spec("a", 0))
    short = chain(max_len=64)
    with pytest.raises(InvalidRequestError, match="64"):
        short.add(spec("a", 64))
    bench.add(spec("a", 159))
    assert bench.step() == {"a": 159}


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    bench = chain()
    bench.add(spec("a", 5, max_tokens=1))
    with pytest.raises(AlreadyExistsError, match="'a' is still running"):
        bench.add(spec("a", 5))
    bench.run()
    bench.add(spec("a", 5, max_tokens=1))
    bench.run()
    assert len(bench.outputs["a"]) == 2


def test_a_prompt_is_admitted_whole_or_not_at_all() -> None:
    bench = chain(max_num_batched_tokens=112)
    bench.add(spec("a", 96), spec("b", 80, first=1000))
    assert bench.schedule() == {"a": 96}


def test_what_an_admitted_prompt_has_not_taken_yet_is_owed_to_it() -> None:
    for other, is_admitted in ((96, False), (80, True)):
        bench = chain(max_num_batched_tokens=112, long_prefill_token_threshold=16, watermark=0.0)
        bench.add(spec("first", 5, first=5000, max_tokens=1), spec("long", 80, first=7000))
        assert bench.step() == {"first": 5, "long": 16}
        bench.add(spec("other", other, first=1000))
        assert ("other" in bench.step()) is is_admitted


def test_a_head_that_does_not_fit_is_not_overtaken() -> None:
    bench = chain()
    bench.add(spec("a", 100), spec("big", 100, first=1000), spec("small", 5, first=2000))
    assert bench.step() == {"a": 100}
    assert bench.step() == {"a": 1}


def test_the_watermark_holds_only_beside_running_requests() -> None:
    bench = chain(usable=100, watermark=0.1)
    bench.add(spec("most", 16 * 89 + 1), spec("rest", 16, first=5000))
    assert bench.step() == {"most": 16 * 89 + 1}
    assert bench.step() == {"most": 1}
    idle = chain(usable=100, watermark=0.1)
    idle.add(spec("all", 16 * 100 - 1))
    assert idle.step() == {"all": 1599}


def test_a_second_identical_prompt_of_the_same_step_shares() -> None:
    bench = chain(usable=20, max_num_batched_tokens=300)
    bench.add(spec("a", 100), spec("b", 100))
    assert bench.schedule() == {"a": 100, "b": 4}


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65])
def test_a_repeated_prompt_finds_all_full_blocks_but_never_its_last_token(length: int) -> None:
    bench = chain(usable=20)
    for name in ("cold", "warm"):
        bench.add(spec(name, length, max_tokens=1))
        bench.schedule()
        updates = bench.commit()
    _, stats = updates.finished["warm"]
    assert stats.cached_tokens == min(16 * (length // 16), length - 1)
    assert stats.prompt_tokens == length


def test_a_fully_cached_prompt_computes_one_token_and_writes_nothing() -> None:
    bench = chain()
    bench.add(spec("a", 32, max_tokens=1))
    bench.step()
    bench.add(spec("b", 32, max_tokens=5))
    assert bench.schedule() == {"b": 1}
    plan = bench.plan
    assert plan is not None
    assert (plan.starts, plan.read_only, plan.new_block_ids) == ([31], frozenset({0}), [[]])
    assert plan.started[0].block_ids == [1, 2]
    bench.commit()
    assert bench.schedule() == {"b": 1}
    assert bench.plan is not None
    assert (bench.plan.starts, bench.plan.read_only, bench.plan.new_block_ids) == ([32], frozenset(), [[3]])


def test_the_last_sampled_token_is_not_cached() -> None:
    bench = chain()
    bench.add(spec("a", 16, max_tokens=16))
    bench.run()
    sequence = [*range(16), *bench.outputs["a"]]
    bench.add(spec("b", [*sequence, 7, 8], max_tokens=1))
    bench.schedule()
    updates = bench.commit()
    assert updates.finished["b"][1].cached_tokens == 16


def test_prompt_logprobs_do_not_read_the_cache_but_write_it() -> None:
    bench = chain(usable=20)
    bench.add(spec("a", 48, max_tokens=1))
    bench.step()
    bench.add(spec("b", 48, max_tokens=1, prompt_logprobs=1))
    assert bench.step() == {"b": 48}
    bench.add(spec("c", 48, first=500, max_tokens=1, prompt_logprobs=1))
    bench.step()
    bench.add(spec("d", 48, first=500, max_tokens=1))
    assert bench.step() == {"d": 1}


def test_an_unrelated_request_that_reuses_a_block_ends_its_hits() -> None:
    bench = chain(usable=2)
    bench.add(spec("a", 17, max_tokens=1))
    bench.step()
    bench.add(spec("b", 31, first=900, max_tokens=1))
    bench.step()
    bench.add(spec("c", 17, max_tokens=1))
    assert bench.step() == {"c": 17}


def test_reuse_goes_beyond_the_first_chunk_and_own_chunks_are_no_hits() -> None:
    bench = chain(usable=20, max_num_batched_tokens=16)
    bench.add(spec("cold", 40, max_tokens=1))
    assert sum(step["cold"] for step in bench.run()) == 40
    assert bench.scheduler.stats.hit_tokens == 0
    bench.add(spec("warm", 40, max_tokens=1))
    assert sum(step["warm"] for step in bench.run()) == 8
    assert bench.scheduler.stats.hit_tokens == 32


def test_queries_and_hits_are_counted_once_however_often_admission_is_tried() -> None:
    bench = chain()
    bench.add(spec("a", 100, max_tokens=20))
    bench.step()
    bench.add(spec("b", 100, first=1000, max_tokens=1))
    bench.run()
    assert bench.scheduler.stats.queried_tokens == 200
    assert bench.scheduler.stats.hit_tokens == 0


def test_skipped_reads_and_a_cache_that_is_off_count_nothing() -> None:
    off = Chain(caching=False)
    skipped = chain()
    for bench, fields in ((off, {}), (skipped, {"prompt_logprobs": 0})):
        bench.add(spec("a", 40, max_tokens=1, **fields))
        bench.run()
        bench.add(spec("b", 40, max_tokens=1, **fields))
        bench.run()
        stats = bench.scheduler.stats
        assert (stats.queried_tokens, stats.hit_tokens, stats.requeried_tokens, stats.rehit_tokens) == (0, 0, 0, 0)
    assert off.events() == []


def test_a_waiting_request_holds_no_blocks() -> None:
    bench = chain()
    bench.add(spec("a", 127, max_tokens=8))
    bench.step()
    before = bench.pool.ref_counts[:]
    bench.add(spec("b", [*range(64), *range(500, 596)][:159]), spec("c", [*range(64), *range(700, 790)]))
    for _ in range(3):
        bench.step()
    assert [count for count in bench.pool.ref_counts if count > 1] == []
    assert sum(bench.pool.ref_counts) - sum(before) <= 1
    bench.run()
    assert bench.outputs["b"]
    assert bench.outputs["c"]


def test_hits_in_the_free_queue_are_not_counted_as_free_as_well() -> None:
    bench = chain(usable=5)
    bench.add(spec("a", 48, max_tokens=1))
    bench.step()
    bench.add(spec("r", 10, first=900, max_tokens=4))
    bench.step()
    bench.add(spec("b", [*range(48), *range(600, 631)], max_tokens=1))
    assert "b" not in bench.step()
    bench.run()
    assert bench.outputs["b"]
    bench.pool.audit()


def test_eviction_takes_the_tail_of_the_oldest_first() -> None:
    bench = chain(usable=8)
    for name, length, first in (("x", 64, 0), ("y", 64, 1000), ("z", 32, 2000)):
        bench.add(spec(name, length, first=first, max_tokens=1))
        bench.run()
    bench.add(spec("again", 64, max_tokens=1))
    assert bench.step() == {"again": 32}


def test_resumed_tokens_count_as_output() -> None:
    bench = chain()
    bench.add(spec("a", 20, max_tokens=5, resume_token_ids=(70, 71, 72)))
    assert bench.step() == {"a": 23}
    bench.run()
    assert len(bench.outputs["a"]) == 2


def test_id_priority_and_sampling_are_no_part_of_a_blocks_identity() -> None:
    bench = chain(usable=20)
    bench.add(spec("a", 48, max_tokens=1))
    bench.run()
    sampling = SamplingParams(temperature=0.3, top_k=7, seed=99)
    bench.add(spec("b", 48, max_tokens=9, priority=3, sampling=sampling, stop_token_ids=frozenset({4})))
    assert bench.step() == {"b": 1}
