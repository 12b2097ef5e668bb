"""What a prompt costs on each pod, term by term, and who comes first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.score import Policy, Query, Ranked, rank
from headstart_operator.decision.view import NO_LOAD, PodView
from hypothesis import given
from hypothesis import strategies as st


def view(name: str, **load: Any) -> PodView:
    """An idle, empty pod of 1,000 tokens/s with 100 blocks, but for what is given of its load."""
    own = {
        key: load.pop(key) for key in ("num_in_flight", "num_pending", "pending_tokens", "numerics_id") if key in load
    }
    return PodView(
        key=PodKey(name, "e"),
        name=name,
        address=name,
        group=GroupKey("m", "t", "r"),
        block_size=16,
        capacity_blocks=100,
        max_num_seqs=8,
        load=NO_LOAD._replace(**({"prefill_tokens_per_s": 1000.0, "free_blocks": 100} | load)),
        **({"numerics_id": ""} | own),
    )


def query(prompt_tokens: int = 160, **fields: Any) -> Query:
    defaults: dict[str, Any] = {"max_tokens": 0, "hashes": range(1, 1 + prompt_tokens // 16), "hit_ratio": 0.5}
    return Query(prompt_tokens=prompt_tokens, **(defaults | fields))


def held(**blocks: int) -> dict[PodKey, int]:
    return {PodKey(name, "e"): count for name, count in blocks.items()}


def names(ranked: list[Ranked]) -> list[str]:
    return [each.view.name for each in ranked]


def test_the_pod_that_holds_the_prefix_is_first_and_the_hit_never_covers_the_last_token() -> None:
    best, other = rank(query(matched=held(b=10)), [view("a"), view("b")])
    assert (best.view.name, best.matched_blocks, best.predicted_cached_tokens) == ("b", 10, 159)
    assert (best.prefill_s, other.prefill_s) == (0.001, 0.16)


def test_a_queue_that_outlasts_the_recomputation_sends_a_request_elsewhere() -> None:
    matched = held(a=10)
    assert names(rank(query(matched=matched), [view("a", pending_prefill_tokens=100), view("b")]))[0] == "a"
    assert names(rank(query(matched=matched), [view("a", pending_prefill_tokens=200), view("b")]))[0] == "b"
    assert names(rank(query(matched=matched), [view("a", pending_tokens=200), view("b")]))[0] == "b"


def test_a_sibling_waits_for_the_prefix_that_is_being_computed_rather_than_compute_it_too() -> None:
    for asked in (query(hashes=range(n, n + 10), matched=held(a=10)) for n in range(0, 200, 10)):
        assert names(rank(asked, [view("a", pending_tokens=160), view("b")]))[0] == "a"


def test_recomputing_counts_for_more_when_many_come_behind() -> None:
    matched, views = held(a=10), [view("a", pending_prefill_tokens=200), view("b")]
    assert names(rank(query(matched=matched), views))[0] == "b"
    crowded = query(matched=matched, arrivals_per_s=10.0, utilization=0.5)
    (elsewhere,) = [each for each in rank(crowded, views) if each.view.name == "b"]
    assert elsewhere.behind_s == pytest.approx(0.16 * 10.0 * 0.16 / 0.5)
    assert names(rank(crowded, views))[0] == "a"


def test_evicting_costs_what_it_will_cost_to_compute_it_again_and_again() -> None:
    full, roomy = rank(query(hit_ratio=0.75), [view("full", free_blocks=4), view("roomy")])[::-1]
    assert (full.view.name, roomy.eviction_s) == ("full", 0.0)
    assert full.eviction_s == pytest.approx(6 * 16 * 3.0 / 1000)


def test_the_time_of_its_output_counts_as_far_as_it_is_likely_to_write() -> None:
    slow = view("slow", decode_step_s=0.02)
    assert rank(query(max_tokens=1000, mean_output_tokens=50.0), [slow])[0].decode_s == pytest.approx(1.0)
    assert rank(query(max_tokens=10, mean_output_tokens=50.0), [slow])[0].decode_s == pytest.approx(0.2)


def test_a_pod_that_has_never_decoded_is_taken_for_as_fast_as_its_kind() -> None:
    views = [view("fresh"), view("a", decode_step_s=0.01), view("b", decode_step_s=0.03)]
    asked = query(max_tokens=100, matched=held(a=10))
    ranked = {each.view.name: each for each in rank(asked, views)}
    assert names(rank(asked, views))[0] == "a"
    assert ranked["fresh"].decode_s == pytest.approx(100 * 0.02)
    other_kind = view("other", decode_step_s=0.5, numerics_id="other")
    assert {each.view.name: each.decode_s for each in rank(asked, [*views, other_kind])}["fresh"] == pytest.approx(2.0)
    (unknown,) = [each for each in rank(asked, [view("x", numerics_id="x"), *views]) if each.view.name == "x"]
    assert unknown.decode_s == pytest.approx(2.0)
    assert rank(asked, [view("fresh")])[0].decode_s == 0.0


def test_a_cold_prefix_has_one_home_and_different_prefixes_spread_evenly() -> None:
    views = [view(name) for name in "abcd"]
    homes = Counter()
    for first in range(0, 4000, 10):
        asked = query(hashes=range(first, first + 10))
        (home, *_), (again, *_) = names(rank(asked, views)), names(rank(asked, views[::-1]))
        assert home == again
        homes[home] += 1
    assert min(homes.values()) >= 70


def test_of_pods_that_are_as_cheap_the_one_that_evicts_least_is_taken() -> None:
    full, half = view("full", free_blocks=0), view("half", free_blocks=5)
    for start in range(0, 200, 10):
        asked = query(hashes=range(start, start + 10), hit_ratio=0.05)
        assert names(rank(asked, [full, half])) == ["half", "full"]


def test_chats_that_share_their_first_block_still_spread() -> None:
    views = [view(name) for name in "abcd"]
    matched = held(a=1, b=1, c=1, d=1)
    homes = {names(rank(query(hashes=[7, *range(n, n + 9)], matched=matched), views))[0] for n in range(0, 300, 10)}
    assert homes == set("abcd")


def test_a_pod_that_has_only_done_its_self_test_is_taken_for_as_fast_as_its_kind() -> None:
    fresh = view("fresh", prefill_tokens_per_s=100.0)
    assert rank(query(), [fresh, view("a")])[1].prefill_s == rank(query(), [fresh, view("a")])[0].prefill_s
    other_kind = view("slow", prefill_tokens_per_s=100.0, numerics_id="other")
    assert names(rank(query(), [other_kind, view("a")])) == ["a", "slow"]
    assert rank(query(), [view("a", prefill_tokens_per_s=0.0)])[0].prefill_s > 0


@st.composite
def fleets(draw: st.DrawFn) -> list[PodView]:
    """Pods of two kinds, some of which have not measured anything yet."""
    loads = st.fixed_dictionaries(
        {
            "pending_prefill_tokens": st.sampled_from([0, 0, 100, 5000]),
            "free_blocks": st.sampled_from([0, 3, 100]),
            "prefill_tokens_per_s": st.sampled_from([0.0, 500.0, 8000.0]),
            "decode_step_s": st.sampled_from([0.0, 0.01, 0.03]),
            "pending_tokens": st.sampled_from([0, 160]),
            "numerics_id": st.sampled_from(["x", "y"]),
        }
    )
    return [view(f"p{number}", **draw(loads)) for number in range(draw(st.integers(1, 6)))]


@given(fleets(), st.data())
def test_costs_are_those_of_the_formula_and_the_order_is_theirs(views: list[PodView], data: st.DataObject) -> None:
    asked = query(
        matched={each.key: data.draw(st.integers(0, 10)) for each in views},
        max_tokens=data.draw(st.sampled_from([0, 50])),
        hit_ratio=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
        arrivals_per_s=2.0,
        utilization=data.draw(st.sampled_from([0.25, 1.0])),
    )
    ranked = rank(asked, views)
    for each in ranked:
        assert each.cost_s == pytest.approx(_cost_s(asked, each.view, views))
    costs = [each.cost_s for each in ranked]
    tie_s = 16 / max(_rate(each, views) for each in views)
    num_tied = sum(cost < min(costs) + tie_s for cost in costs)
    assert max(costs[:num_tied]) < min(costs) + tie_s
    assert costs[num_tied:] == sorted(costs[num_tied:])
    preferred = [(each.matched_blocks, -each.eviction_s) for each in ranked[:num_tied]]
    assert preferred == sorted(preferred, reverse=True)


def _cost_s(asked: Query, pod: PodView, views: list[PodView]) -> float:
    """The formula, term by term as it is written down."""
    rate, matched = _rate(pod, views), asked.matched[pod.key]
    output = min(asked.max_tokens, asked.mean_output_tokens)
    h, u = min(asked.hit_ratio, 0.95), min(asked.utilization, 0.95)
    queue = (pod.load.pending_prefill_tokens + pod.pending_tokens) / rate
    prefill = (asked.prompt_tokens - min(16 * matched, asked.prompt_tokens - 1)) / rate
    decode = output * (pod.load.decode_step_s or _usual_step_s(pod, views))
    evicted = max(0.0, (asked.prompt_tokens + output) / 16 - matched - pod.load.free_blocks)
    eviction = evicted * 16 * h / (1 - h) / rate
    behind = (prefill + eviction) * asked.arrivals_per_s * (queue + prefill) / (1 - u)
    return queue + prefill + decode + eviction + behind


def _rate(pod: PodView, views: list[PodView]) -> float:
    rates = [each.load.prefill_tokens_per_s for each in views]
    own = [each.load.prefill_tokens_per_s for each in views if each.numerics_id == pod.numerics_id]
    return max(own) or max(rates) or 1000.0


def _usual_step_s(pod: PodView, views: list[PodView]) -> float:
    known = [each for each in views if each.load.decode_step_s]
    kin = [each for each in known if each.numerics_id == pod.numerics_id] or known
    return sum(each.load.decode_step_s for each in kin) / max(1, len(kin))


def test_who_may_not_read_the_cache_is_sent_to_the_idlest() -> None:
    asked = query(matched=held(a=10), reads_cache=False)
    best, busy = rank(asked, [view("a", pending_prefill_tokens=50), view("b")])
    assert (best.view.name, busy.matched_blocks, busy.predicted_cached_tokens) == ("b", 0, 0)


def test_a_continuation_prefers_the_numerics_that_it_began_with() -> None:
    views = [view("a", numerics_id="x"), view("b", numerics_id="y", pending_prefill_tokens=5000)]
    assert names(rank(query(numerics_id="y"), views)) == ["b", "a"]


def test_round_robin_takes_turns_and_least_loaded_counts_requests() -> None:
    views = [view("a"), view("b"), view("c")]
    assert [names(rank(query(turn=turn), views, Policy.ROUND_ROBIN))[0] for turn in range(4)] == list("abca")
    loaded = [view("a", running=3), view("b", waiting=1, num_pending=1), view("c")._replace(num_in_flight=1)]
    assert names(rank(query(), loaded, Policy.LEAST_LOADED)) == ["c", "b", "a"]


def test_no_pod_is_no_answer() -> None:
    assert rank(query(), []) == []
