"""How requests end: stop order, drafts, aborts in every state, faults of a row and of a step, reset."""

import pytest
from headstart.core.step import FinishReason
from headstart.errors import FailedPreconditionError
from headstart.scheduler.limits import SchedulerLimits
from support.chain import Chain, spec

EOS = 2


def chain(usable: int = 10, **limits: object) -> Chain:
    return Chain(usable=usable, eos=frozenset({EOS}), limits=SchedulerLimits(**limits))  # type: ignore[arg-type]


def decoding(bench: Chain, **fields: object) -> Chain:
    bench.add(spec("a", 8, **fields))
    bench.step()
    return bench


def test_eos_ends_a_request_and_drops_what_was_sampled_after_it() -> None:
    bench = decoding(chain())
    bench.schedule()
    updates = bench.commit(sampled=[[10, EOS, 7]])
    assert updates.new_tokens == [[10, EOS]]
    finish, stats = updates.finished["a"]
    assert finish == (FinishReason.STOP, None, "")
    assert stats.prompt_tokens == 8


def test_a_stop_id_is_recorded() -> None:
    bench = decoding(chain(), stop_token_ids=frozenset({42}))
    bench.schedule()
    updates = bench.commit(sampled=[[10, 42, 7]])
    assert updates.new_tokens == [[10, 42]]
    assert updates.finished["a"][0] == (FinishReason.STOP, 42, "")


def test_ignored_eos_does_not_end_unless_it_is_a_stop_id() -> None:
    bench = decoding(chain(), ignore_eos=True)
    bench.schedule()
    assert bench.commit(sampled=[[EOS]]).finished == {}
    bench = decoding(chain(), ignore_eos=True, stop_token_ids=frozenset({EOS}))
    bench.schedule()
    assert bench.commit(sampled=[[EOS]]).finished["a"][0].matched_stop == EOS


def test_length_ends_at_max_tokens_even_inside_accepted_drafts() -> None:
    bench = decoding(chain(), max_tokens=3)
    bench.schedule()
    updates = bench.commit(sampled=[[10, 11, 12]])
    assert updates.new_tokens == [[10, 11]]
    assert updates.finished["a"][0].reason is FinishReason.LENGTH


def test_min_tokens_holds_back_everything_but_length() -> None:
    bench = chain()
    bench.add(spec("a", 8, min_tokens=3, max_tokens=9), spec("b", 8, first=100, min_tokens=9, max_tokens=2))
    bench.schedule()
    assert bench.commit(sampled=[[EOS], [5]]).finished == {}
    bench.schedule()
    assert set(bench.commit(sampled=[[EOS], [5]]).finished) == {"b"}
    bench.schedule()
    assert bench.commit(sampled=[[EOS]]).finished["a"][0].reason is FinishReason.STOP


def test_max_len_ends_with_length_and_no_slot_lies_beyond_it() -> None:
    bench = chain(max_len=20)
    bench.add(spec("a", 15))
    ends = []
    while bench.scheduler.stats.running or bench.scheduler.stats.waiting:
        bench.schedule()
        assert bench.plan is not None
        ends += [start + count for start, count in zip(bench.plan.starts, bench.plan.num_tokens, strict=True)]
        updates = bench.commit()
    assert updates.finished["a"][0].reason is FinishReason.LENGTH
    assert len(bench.outputs["a"]) == 5
    assert max(ends) < 20


def test_the_pool_itself_bounds_a_request_that_asks_for_more() -> None:
    bench = chain(usable=49, max_len=1024)
    bench.add(spec("a", 700, max_tokens=300, ignore_eos=True))
    bench.run()
    assert len(bench.outputs["a"]) == 49 * 16 - 700


def test_accepted_drafts_advance_and_rejected_ones_roll_back() -> None:
    for sampled, computed in (([11, 12, 13, 14], 12), ([11, 15], 10)):
        bench = chain()
        bench.add(spec("a", 8))
        bench.schedule()
        bench.commit(drafts={0: [11, 12, 13]})
        assert bench.schedule() == {"a": 4}
        bench.commit(sampled=[sampled])
        assert bench.schedule() == {"a": 1}
        assert bench.plan is not None
        assert bench.plan.starts == [computed]
        assert bench.outputs["a"][1:] == sampled


def test_a_block_with_drafts_is_registered_only_from_what_was_accepted() -> None:
    bench = chain()
    bench.add(spec("a", 29))
    bench.schedule()
    bench.commit(drafts={0: [1, 2, 3, 4]})
    assert bench.schedule() == {"a": 5}
    assert bench.pool.num_cached == 1
    bench.commit(sampled=[[1, 9]])
    assert bench.pool.num_cached == 1
    bench.step()
    assert bench.pool.num_cached == 2


def test_the_text_is_the_same_with_any_drafts() -> None:
    def run(drafts: list[int] | None) -> list[int]:
        bench = Chain(usable=20, next_token=lambda _name, position: 100 + position * 7 % 13)
        bench.add(spec("a", 20, max_tokens=40))
        while bench.scheduler.stats.running or bench.scheduler.stats.waiting:
            bench.schedule()
            assert bench.plan is not None
            rows = range(bench.plan.num_rows)
            known = 20 + len(bench.outputs.get("a", []))
            right = [100 + (known + 1 + k) * 7 % 13 for k in range(4)]
            bench.commit(drafts={} if drafts is None else {row: right[: drafts[known % len(drafts)]] for row in rows})
        return bench.outputs["a"]

    assert run([0, 1, 4]) == run(None) == run([4]) == run([2])


def test_no_draft_goes_beyond_the_length() -> None:
    bench = chain()
    bench.add(spec("a", 8, max_tokens=3))
    bench.schedule()
    bench.commit(drafts={0: [1, 2, 3, 4]})
    assert bench.schedule() == {"a": 2}


@pytest.mark.parametrize(
    "state", ["waiting", "prefilling", "decoding", "preempted", "in flight", "finished", "unknown"]
)
def test_an_abort_in_any_state_frees_once_and_yields_nothing(state: str) -> None:
    bench = chain(max_num_batched_tokens=16 if state == "prefilling" else 2048)
    bench.add(spec("a", 60, max_tokens=1 if state == "finished" else 50))
    if state != "waiting":
        bench.schedule()
        if state != "in flight":
            bench.commit()
            bench.step()
    if state == "preempted":
        bench.scheduler.reset(force=True)
    name = "nobody" if state == "unknown" else "a"
    first = bench.scheduler.abort(name)
    assert (first is None) is (state in ("finished", "unknown"))
    assert bench.scheduler.abort(name) is None
    if state == "in flight":
        assert bench.pool.num_free == 6, "its blocks may still be written"
        assert bench.commit().new_tokens == [[]]
    if state != "unknown":
        assert bench.pool.num_free == 10
        assert bench.step() == {}
    assert bench.scheduler.audit() == 0
    bench.pool.audit()


def test_an_id_can_be_used_again_while_its_aborted_step_is_in_flight() -> None:
    bench = chain()
    bench.add(spec("a", 20))
    bench.schedule()
    bench.scheduler.abort("a")
    bench.add(spec("a", 20, first=500, max_tokens=1))
    assert bench.commit().new_tokens == [[]]
    assert bench.schedule() == {"a": 20}
    assert bench.plan is not None
    assert bench.plan.finished == ["a"]
    assert [row.spec.prompt_token_ids[0] for row in bench.plan.started] == [500]


def test_the_runner_is_told_once_who_left() -> None:
    bench = chain()
    bench.add(spec("a", 8, max_tokens=1), spec("b", 8, first=100, max_tokens=3))
    bench.step()
    bench.schedule()
    assert bench.plan is not None
    assert bench.plan.finished == ["a"]
    bench.commit()
    bench.schedule()
    assert bench.plan.finished == []


def test_a_row_that_fails_after_its_forward_pass_ends_alone_and_leaves_a_sound_cache() -> None:
    bench = chain(usable=30)
    bench.add(spec("bad", 40), spec("heir", [*range(32), 700, 701]))
    bench.schedule()
    updates = bench.commit(sampled=[[], [1]], faults={0: "sampling failed"})
    assert set(updates.finished) == {"bad"}
    assert updates.new_tokens == [[], [1]]
    bench.events()
    assert bench.view == bench.truth()
    assert len(bench.view) == 2
    assert bench.scheduler.stats.contained_faults == 1
    bench.run()
    assert bench.scheduler.audit() == 0


def test_a_poisoned_row_ends_alone_and_nothing_of_it_stays_cached() -> None:
    bench = chain(usable=20, max_num_batched_tokens=48)
    bench.add(spec("bad", 80), spec("good", 40, first=1000))
    assert bench.step() == {"bad": 48}
    bench.events()
    bench.schedule()
    updates = bench.commit(sampled=[[], []], faults={0: "non-finite logits"}, poisoned=frozenset({0}))
    finish, _ = updates.finished["bad"]
    assert finish == (FinishReason.ERROR, None, "non-finite logits")
    bench.events()
    assert bench.view == bench.truth()
    assert bench.scheduler.stats.contained_faults == 1
    bench.run()
    assert bench.outputs["good"]
    bench.add(spec("again", 80, max_tokens=1))
    assert bench.step() == {"again": 48}


def test_rows_that_built_on_a_faulty_row_in_its_step_end_with_it() -> None:
    bench = chain(usable=30)
    bench.add(
        spec("bad", 40),
        spec("heir", [*range(32), 700, 701]),
        spec("grandheir", [*range(32), 700, 701, *range(800, 830)]),
        spec("other", 40, first=5000),
    )
    bench.schedule()
    updates = bench.commit(sampled=[[], [1], [1], [1]], faults={0: "boom"}, poisoned=frozenset({0}))
    assert set(updates.finished) == {"bad", "heir", "grandheir"}
    assert updates.new_tokens == [[], [], [], [1]]
    assert bench.events() != []
    assert bench.view == bench.truth()
    assert len(bench.view) == 2


def test_a_failed_step_ends_its_requests_and_publishes_only_its_removals() -> None:
    bench = chain(usable=6)
    bench.add(spec("old", 32, max_tokens=1))
    bench.step()
    bench.events()
    bench.add(spec("a", [*range(32), *range(900, 960)]), spec("waiting", 80, first=3000))
    assert bench.schedule() == {"a": 60}
    updates = bench.fail()
    assert updates.finished["a"][0].reason is FinishReason.ERROR
    assert bench.scheduler.stats.contained_faults == 1
    assert bench.events() == []
    assert bench.view == bench.truth()
    assert len(bench.view) == 2
    assert bench.step() == {"waiting": 80}
    assert bench.scheduler.stats.referenced_blocks == 5


def test_a_reset_is_refused_while_blocks_are_in_use_unless_forced() -> None:
    bench = chain(usable=20)
    bench.add(spec("a", 40, max_tokens=6), spec("b", 40, first=1000, max_tokens=6))
    bench.step()
    before = dict(bench.outputs)
    with pytest.raises(FailedPreconditionError, match="6 blocks are in use by 2"):
        bench.scheduler.reset(force=False)
    bench.events()
    assert bench.scheduler.reset(force=True) == 4
    assert [type(event).__name__ for event in bench.events()] == ["Cleared"]
    assert list(bench.step().items()) == [("a", 41), ("b", 41)]
    bench.run()
    assert bench.outputs["a"][: len(before["a"])] == before["a"]
    assert len(bench.outputs["a"]) == 6
    assert bench.scheduler.reset(force=False) > 0
    bench.add(spec("c", 40, max_tokens=1))
    assert bench.step() == {"c": 40}


def test_all_is_empty_when_everything_has_ended() -> None:
    bench = chain(usable=40, max_num_batched_tokens=64)
    for index in range(200):
        bench.add(spec(f"r{index}", 1 + index * 37 % 90, first=index % 7 * 100, max_tokens=1 + index % 9))
    bench.run()
    assert bench.pool.num_free == 40
    assert not any(bench.pool.ref_counts)
    assert bench.scheduler.audit() == 0
    assert bench.step() == {}
    assert not bench.scheduler.has_work
