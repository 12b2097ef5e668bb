"""What is still to be computed: shared beginnings once, cached ones not at all, and never too much."""

import random

import pytest
from headstart.scheduler.limits import SchedulerLimits
from hypothesis import given
from hypothesis import strategies as st
from support.chain import Chain, spec


def pending(chain: Chain) -> int:
    return chain.scheduler.stats.pending_prefill_tokens


def test_siblings_that_wait_are_one_prefix_and_their_tails() -> None:
    chain = Chain(usable=100)
    prefix = list(range(160))
    chain.add(*(spec(f"s{i}", [*prefix, *range(1000 + 100 * i, 1010 + 100 * i)]) for i in range(5)))
    assert pending(chain) == 160 + 5 * 10


def test_what_the_cache_holds_is_not_pending() -> None:
    chain = Chain(usable=100)
    chain.add(spec("first", 160, max_tokens=1))
    chain.run()
    chain.add(spec("second", [*range(160), 9, 9, 9]), spec("all of it", 160), spec("salted", 160, cache_salt="x"))
    assert pending(chain) == 3 + 1 + 160


def test_a_request_that_may_not_read_the_cache_computes_all() -> None:
    chain = Chain(usable=100)
    chain.add(spec("a", 160), spec("b", 160, prompt_logprobs=1))
    assert pending(chain) == 160 + 160


def test_without_a_cache_nothing_is_shared() -> None:
    chain = Chain(usable=100, caching=False)
    chain.add(spec("a", 160), spec("b", 160))
    assert pending(chain) == 320


def test_a_prefill_counts_with_its_rest_and_a_decode_not_at_all() -> None:
    chain = Chain(usable=100, limits=SchedulerLimits(max_num_batched_tokens=64))
    chain.add(spec("a", 160))
    seen = []
    for _ in range(4):
        chain.step()
        seen.append(pending(chain))
    assert seen == [96, 32, 0, 0]


def test_who_leaves_takes_its_work_along() -> None:
    chain = Chain(usable=100)
    chain.add(spec("a", 160), spec("b", 160, first=500))
    chain.scheduler.abort("a")
    assert pending(chain) == 160
    chain.scheduler.abort("b")
    assert pending(chain) == 0


def test_a_preempted_request_waits_with_what_it_lost() -> None:
    chain = Chain(usable=100)
    chain.add(spec("a", 100))
    chain.step()
    chain.add(spec("b", 100))
    assert pending(chain) == 4
    chain.scheduler.reset(force=True)
    assert pending(chain) == 101 + 4


def before(chain: Chain, name: str) -> int:
    return chain.scheduler.num_tokens_before(name)


def test_a_short_prompt_comes_after_shorter_ones_of_its_class_and_passes_by_longer_ones() -> None:
    chain = Chain(usable=400, limits=SchedulerLimits(policy="priority", long_prefill_token_threshold=128))
    chain.add(spec("long", 3000), spec("shorter", 50, first=5000), spec("longer", 90, first=6000))
    chain.add(spec("low", 10, first=7000, priority=1), spec("high", 20, first=8000, priority=-1))
    chain.add(spec("it", 60, first=9000))
    assert before(chain, "it") == 60 + 50 + 20


def test_a_long_prompt_comes_after_all_but_those_that_may_run_beside_it() -> None:
    chain = Chain(usable=2000, limits=SchedulerLimits(long_prefill_token_threshold=128, max_partial_prefills=3))
    chain.add(*(spec(f"r{i}", 1000 + i, first=2000 * i) for i in range(5)), spec("short", 30, first=50_000))
    chain.add(spec("it", 700, first=60_000))
    assert before(chain, "it") == 700 + 30 + 1000 + 1001 + 1002


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(seed=st.integers(0, 2**32))
def test_neither_the_backlog_nor_what_comes_before_a_request_is_more_than_the_truth(policy: str, seed: int) -> None:
    """The bound against the truth, while others arrive, hit, preempt and are cancelled."""
    rng = random.Random(seed)
    limits = SchedulerLimits(max_num_batched_tokens=64, policy=policy, long_prefill_token_threshold=32, max_num_seqs=6)
    chain = Chain(usable=60, limits=limits)
    prefixes = [[rng.randrange(1000) for _ in range(100)] for _ in range(3)]
    bounds: dict[str, int] = {}
    for number in range(25):
        prompt = rng.choice(prefixes)[: rng.randint(0, 100)] + [rng.randrange(1000) for _ in range(rng.randint(1, 60))]
        name = f"r{number}"
        chain.add(spec(name, prompt, max_tokens=1, priority=rng.randint(-1, 1)))
        bounds[name] = chain.scheduler.counters.computed_tokens + before(chain, name)
        for _ in range(rng.randint(0, 2)):
            chain.step()
            for told in [told for told in bounds if chain.outputs.get(told)]:
                assert chain.scheduler.counters.computed_tokens > bounds.pop(told) - chain.block_size
        if rng.random() < 0.1:
            chain.scheduler.abort(f"r{rng.randrange(number + 1)}")
    num_amid = len(chain.scheduler._running.prefilling)
    forecast, done = pending(chain), chain.scheduler.counters.computed_tokens
    chain.run()
    assert forecast - num_amid * chain.block_size <= chain.scheduler.counters.computed_tokens - done
    assert pending(chain) == 0


def test_a_block_that_somebody_else_computed_is_no_longer_pending() -> None:
    chain = Chain(usable=200, limits=SchedulerLimits(policy="priority", max_num_seqs=1))
    chain.add(spec("runs", 16, first=5000, priority=-1))
    chain.step()
    chain.add(spec("old", 160, priority=1), spec("new", [*range(160), 7], max_tokens=1))
    assert pending(chain) == 160 + 1
    chain.scheduler.abort("runs")
    chain.step()
    assert chain.outputs["new"]
    assert pending(chain) <= 1


@given(seed=st.integers(0, 2**32), budget=st.sampled_from([16, 64, 4096]), partial=st.integers(1, 4))
def test_the_backlog_never_exceeds_what_the_prefills_then_compute(seed: int, budget: int, partial: int) -> None:
    """Trees of shared prefixes in a pool that holds all of them. In one step it is the very number; a chunk that has to
    end within a block makes a sibling compute that block twice."""
    rng = random.Random(seed)
    chain = Chain(usable=2000, limits=SchedulerLimits(max_num_batched_tokens=budget, max_partial_prefills=partial))
    prompts: list[list[int]] = []
    for _ in range(rng.randint(1, 12)):
        parent = rng.choice(prompts) if prompts and rng.random() < 0.7 else []
        tail = [rng.randrange(1000) for _ in range(rng.randint(1, 90))]
        prompts.append(parent[: rng.randint(0, len(parent))] + tail)
    chain.add(*(spec(f"r{i}", prompt, max_tokens=1) for i, prompt in enumerate(prompts)))
    forecast = pending(chain)
    chain.run()
    computed = chain.scheduler.counters.computed_tokens
    assert forecast == computed if budget == 4096 else forecast <= computed
    assert pending(chain) == 0
