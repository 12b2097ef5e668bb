"""Traffic for fleets in virtual time: equal seeds are equal, conversations stay whole."""

from __future__ import annotations

from collections import Counter

from headstart.cli.bench.traffic import Arrival, SharedPrefixes, sampled, shuffled


def _conversations(num_groups: int = 40, num_turns: int = 3) -> list[Arrival]:
    """Each turn of a conversation comes 10 s after the one before."""
    arrivals = [
        Arrival(at_s=group + 10.0 * turn, group=group, prompt=(0, group, *range(turn)), max_tokens=1)
        for group in range(num_groups)
        for turn in range(num_turns)
    ]
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def test_equal_seeds_give_equal_requests_and_others_do_not() -> None:
    traffic = SharedPrefixes(num_requests=20)
    assert traffic.arrivals(4) == traffic.arrivals(4)
    assert traffic.arrivals(4) != traffic.arrivals(5)


def test_requests_share_their_groups_prefix_and_nothing_else() -> None:
    traffic = SharedPrefixes(num_requests=50, weights=[1.0, 1.0], prefix_tokens=8, suffix_tokens=4)
    arrivals = traffic.arrivals(1)
    assert {arrival.group for arrival in arrivals} == {0, 1}
    assert len({arrival.prompt[:8] for arrival in arrivals}) == 2
    assert len({arrival.prompt[8:] for arrival in arrivals}) == 50


def test_a_share_keeps_whole_conversations_at_their_times() -> None:
    arrivals = _conversations(num_groups=400)
    kept = sampled(arrivals, share=0.5, seed=3)
    assert 150 < len({each.group for each in kept}) < 250
    assert set(Counter(each.group for each in kept).values()) == {3}
    assert set(kept) <= set(arrivals)
    assert kept == sampled(arrivals, share=0.5, seed=3) != sampled(arrivals, share=0.5, seed=4)


def test_shuffled_conversations_begin_elsewhere_and_keep_their_pauses() -> None:
    arrivals = _conversations()
    mixed = shuffled(arrivals, seed=3)
    assert [each.at_s for each in mixed] == sorted(each.at_s for each in mixed)
    begins = {group: min(each.at_s for each in mixed if each.group == group) for group in range(40)}
    assert sorted(begins.values()) == [float(group) for group in range(40)]
    assert [begins[group] for group in range(40)] != sorted(begins.values())
    for group, begun_s in begins.items():
        assert [each.at_s - begun_s for each in mixed if each.group == group] == [0.0, 10.0, 20.0]
