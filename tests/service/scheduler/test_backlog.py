"""What is still to be computed: shared beginnings once, cached ones not at all, and never too much."""

import random

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


def test_ahead_by_priority_are_those_that_do_not_come_after() -> None:
    chain = Chain(usable=100, limits=SchedulerLimits(policy="priority"))
    chain.add(spec("high", 50, priority=-1), spec("same", 60, first=500), spec("low", 70, first=900, priority=1))
    assert [chain.scheduler.num_tokens_ahead(priority) for priority in (-2, -1, 0, 1)] == [0, 50, 110, 180]


def test_under_fcfs_everybody_is_ahead() -> None:
    chain = Chain(usable=100)
    chain.add(spec("a", 50, priority=5), spec("b", 60, first=500))
    assert chain.scheduler.num_tokens_ahead(-9) == 110


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
