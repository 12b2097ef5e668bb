"""How a step's token budget is shared: decodes, chunks, the long-prefill cap, the partial-prefill limit."""

from headstart.scheduler.limits import SchedulerLimits
from support.chain import Chain, spec


def chain(usable: int = 1000, **limits: object) -> Chain:
    return Chain(usable=usable, limits=SchedulerLimits(**limits))  # type: ignore[arg-type]


def test_many_short_prompts_fit_one_step_in_their_order() -> None:
    bench = chain(max_num_batched_tokens=8192)
    bench.add(*(spec(f"r{index}", 10, first=100 * index) for index in range(10)))
    assert bench.schedule() == {f"r{index}": 10 for index in range(10)}
    assert bench.plan is not None
    assert bench.plan.request_ids == [f"r{index}" for index in range(10)]


def test_three_long_prompts_share_the_budget_under_the_cap() -> None:
    bench = chain(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    bench.add(*(spec(name, 800, first=10_000 * place) for place, name in enumerate("abc")))
    assert bench.step() == {"a": 400, "b": 400, "c": 224}
    assert bench.step() == {"a": 400, "b": 400, "c": 224}
    assert bench.step() == {"a": 1, "b": 1, "c": 352}


def test_a_lone_prompt_ignores_the_cap_until_it_has_company() -> None:
    bench = chain(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    bench.add(spec("lone", 2000))
    assert bench.step() == {"lone": 1024}
    bench.add(spec("companion", 10, first=9000))
    assert bench.step() == {"lone": 400, "companion": 10}


def test_chunks_shrink_as_a_prompt_goes_on_so_that_no_step_takes_longer_than_the_first() -> None:
    bench = chain(usable=5000, max_num_batched_tokens=2048, long_prefill_token_threshold=128, attention_span=1024)
    bench.add(spec("decode", 8), spec("long", 8000, first=1000))
    sizes = [bench.step()["long"] for _ in range(60)]
    starts = [sum(sizes[:step]) for step in range(len(sizes))]
    work = [size * (1 + start / 1024) for size, start in zip(sizes, starts, strict=True)]
    assert sizes[0] == 128
    assert max(work) <= 128
    assert min(work) > 128 / 2
    assert sizes == sorted(sizes, reverse=True)


def test_a_chunk_is_never_empty_however_long_the_context() -> None:
    limits = SchedulerLimits(long_prefill_token_threshold=2, attention_span=10)
    assert [limits.shrunk(2, position) for position in (0, 10, 11, 1_000_000)] == [2, 1, 1, 1]


def test_a_few_tokens_behind_a_long_cached_prefix_start_whole() -> None:
    bench = chain(usable=2000, max_num_batched_tokens=2048, long_prefill_token_threshold=128, attention_span=100)
    bench.add(spec("first", 4000))
    bench.run()
    bench.add(spec("decode", 8, first=9000, max_tokens=50))
    bench.step()
    bench.add(spec("again", 4100))
    assert bench.step()["again"] == 100


def test_a_prompt_that_waits_in_vain_is_no_company() -> None:
    bench = chain(usable=70, max_num_batched_tokens=512, long_prefill_token_threshold=100)
    bench.add(spec("lone", 1000), spec("too big for now", 500, first=5000))
    assert bench.step() == {"lone": 512}


def test_without_a_cap_the_first_prompt_takes_all_it_wants() -> None:
    bench = chain(max_num_batched_tokens=1024, max_num_seqs=3)
    bench.add(spec("a", 800), spec("b", 800, first=2000), spec("c", 10, first=4000), spec("d", 10, first=5000))
    assert bench.step() == {"a": 800, "b": 224}


def test_decodes_come_before_partial_prefills() -> None:
    bench = chain(max_num_batched_tokens=64, long_prefill_token_threshold=32)
    bench.add(spec("short", 8), spec("long", 500, first=1000))
    assert bench.step() == {"short": 8, "long": 32}
    bench.add(spec("late", 8, first=3000))
    assert list(bench.step()) == ["short", "long", "late"]
    assert list(bench.step()) == ["short", "late", "long"]


def test_a_short_prompt_behind_a_long_prefill_starts_within_three_steps() -> None:
    bench = chain(max_num_batched_tokens=256, long_prefill_token_threshold=128)
    bench.add(spec("long", 4000))
    for _ in range(3):
        bench.step()
    bench.add(spec("short", 30, first=9000))
    for _ in range(3):
        bench.step()
    assert bench.outputs["short"]
    assert not bench.outputs["long"]


def test_a_short_prompt_starts_within_three_steps_behind_several_long_ones() -> None:
    for limits in (
        {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 128},
        {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 512},
    ):
        bench = chain(usable=4000, **limits)
        bench.add(*(spec(f"long {place}", 8000, first=10_000 * place) for place in range(4)))
        for _ in range(3):
            bench.step()
        bench.add(spec("short", 30, first=90_000))
        for _ in range(3):
            planned = bench.step()
        assert bench.outputs["short"]
        assert sum(name.startswith("long") for name in planned) >= 2, "the long ones go on"


def test_a_step_looks_at_a_bounded_number_of_waiting_requests() -> None:
    bench = chain(usable=50_000, max_num_batched_tokens=256, long_prefill_token_threshold=32)
    bench.add(*(spec(f"long {place}", 1000, first=2000 * place) for place in range(200)))
    asked = set()
    match = bench.manager.match

    def noted(table, tokens):
        asked.add(id(table))
        return match(table, tokens)

    bench.manager.match = noted
    planned = bench.step()
    assert 1 <= len(asked) - len(planned) <= 20


def test_the_partial_limit_steps_over_a_head_that_keeps_its_place() -> None:
    bench = chain(max_num_batched_tokens=128, long_prefill_token_threshold=32, max_partial_prefills=2)
    for place, name in enumerate("abc"):
        bench.add(spec(name, 320, first=1000 * place))
    bench.add(spec("short", 10, first=9000))
    assert bench.step() == {"a": 32, "b": 32, "short": 10}
    while bench.scheduler.stats.waiting:
        planned = bench.step()
        assert sum(count > 1 for count in planned.values()) <= 3
    assert "c" in planned


def test_a_chunk_in_company_ends_at_a_block_edge() -> None:
    bench = chain(max_num_batched_tokens=64, long_prefill_token_threshold=50)
    bench.add(spec("a", 200), spec("b", 10, first=1000))
    assert bench.step() == {"a": 48, "b": 10}


def test_drafts_are_extra_tokens_of_a_row_and_a_chunk_may_end_anywhere_when_alone() -> None:
    bench = chain(max_num_batched_tokens=50)
    bench.add(spec("a", 80))
    assert bench.step() == {"a": 50}
    assert bench.schedule() == {"a": 30}
    bench.commit(drafts={0: [1, 2, 3]})
    assert bench.schedule() == {"a": 4}
    assert bench.plan is not None
    assert bench.plan.drafts == {0: [1, 2, 3]}


def test_drafts_are_trimmed_to_the_budget_never_over_it() -> None:
    bench = chain(max_num_batched_tokens=20)
    bench.add(spec("a", 10), spec("b", 10, first=100))
    assert bench.schedule() == {"a": 10, "b": 10}
    bench.commit(drafts={0: [1, 2, 3], 1: [1, 2, 3]})
    assert bench.schedule() == {"a": 4, "b": 4}
    tight = chain(max_num_batched_tokens=6)
    tight.add(spec("a", 3), spec("b", 3, first=100))
    tight.schedule()
    tight.commit(drafts={0: [1, 2, 3], 1: [1, 2, 3]})
    assert tight.schedule() == {"a": 4, "b": 2}
    assert tight.plan is not None
    assert tight.plan.drafts == {0: [1, 2, 3], 1: [1]}


def test_guesses_starve_no_other_decode() -> None:
    bench = chain(max_num_batched_tokens=5, max_num_seqs=4)
    bench.add(*(spec(name, 1, first=100 * place) for place, name in enumerate("abc")))
    bench.schedule()
    bench.commit(drafts={row: [1, 2, 3] for row in range(3)})
    assert bench.schedule() == {"a": 3, "b": 1, "c": 1}


def test_no_more_run_than_the_budget_can_advance() -> None:
    bench = chain(max_num_batched_tokens=2, max_num_seqs=9)
    bench.add(*(spec(name, 1, first=100 * place, max_tokens=3) for place, name in enumerate("abcd")))
    assert [len(step) for step in bench.run()] == [2, 2, 2, 2, 2, 2]


def test_nothing_to_do_gives_an_empty_plan() -> None:
    bench = chain()
    assert bench.step() == {}
    assert not bench.scheduler.has_work


def test_siblings_of_a_cold_prefix_compute_it_once() -> None:
    bench = chain(usable=8000, max_num_batched_tokens=2048, long_prefill_token_threshold=512)
    prefix = list(range(1600))
    bench.add(*(spec(f"r{index}", [*prefix, 50_000 + index], max_tokens=1) for index in range(32)))
    bench.run()
    stats = bench.scheduler.stats
    assert stats.computed_tokens <= 1.02 * (len(prefix) + 32)
    # What a sibling computed is cached to the others, also when they found it on their way.
    assert stats.rematched_tokens > 0
    assert stats.hit_tokens == 32 * (len(prefix) + 1) - stats.computed_tokens
