"""Whole fleets in virtual time: what routing is worth, and that no fault costs a request."""

from __future__ import annotations

import random

import pytest
from headstart.cli.bench.traffic import Arrival, SharedPrefixes
from headstart.cli.bench.virtual_fleet import Report, VirtualFleet
from headstart.cli.bench.virtual_pod import Shape
from headstart_operator.decision.score import Policy

NUM_GROUPS = 24


def traffic(*, num_requests: int = 600) -> list[Arrival]:
    return SharedPrefixes(num_requests=num_requests).arrivals(0)


def fleet() -> VirtualFleet:
    return VirtualFleet(4, Shape())


@pytest.fixture(scope="module")
def undisturbed() -> Report:
    return fleet().run(traffic())


def test_prefix_routing_keeps_up_with_a_static_partition_of_the_groups() -> None:
    arrivals = traffic(num_requests=1200)
    prefix = fleet().run(arrivals)
    static = VirtualFleet(4, Shape(), partition=lambda group: group % 4).run(arrivals)
    assert prefix.hit_ratio >= max(0.74, 0.97 * static.hit_ratio)


@pytest.mark.parametrize("policy", [Policy.LEAST_LOADED, Policy.ROUND_ROBIN])
def test_prefix_routing_leaves_the_other_policies_behind(undisturbed: Report, policy: Policy) -> None:
    other = VirtualFleet(4, Shape(), policy=policy).run(traffic())
    assert other.num_failed == 0
    assert other.hit_ratio < 0.5 * undisturbed.hit_ratio
    assert other.ttft_s(0.95) > undisturbed.ttft_s(0.95)


def test_what_was_predicted_is_what_the_pods_find(undisturbed: Report) -> None:
    """What differs: blocks that are evicted while a request waits, and siblings that compute a prefix in turns."""
    predicted = sum(each.predicted_tokens for each in undisturbed.outcomes)
    actual = sum(each.cached_tokens for each in undisturbed.outcomes)
    assert abs(predicted - actual) <= 0.03 * actual


def test_r_a_killed_pod_comes_back_empty_and_nobody_expects_anything_of_it() -> None:
    virtual = fleet()
    victim = virtual.pods[1]
    virtual.at(4.0, lambda: virtual.kill(victim))
    virtual.at(5.0, lambda: virtual.revive(victim))
    arrivals = traffic()
    report = virtual.run(arrivals)
    assert report.num_failed == 0
    pairs = zip(arrivals, report.outcomes, strict=True)
    late = [outcome for arrival, outcome in pairs if arrival.at_s >= 5.0 and outcome.pod == victim.name]
    assert len(late) >= 20
    assert late[0].predicted_tokens == 0
    predicted = sum(each.predicted_tokens for each in late)
    actual = sum(each.cached_tokens for each in late)
    assert abs(predicted - actual) <= 0.03 * actual


def test_s_a_new_router_knows_at_once_what_the_old_one_knew(undisturbed: Report) -> None:
    virtual = fleet()
    virtual.at(5.0, virtual.restart_router)
    report = virtual.run(traffic())
    assert report.num_failed == 0
    assert report.hit_ratio >= 0.95 * undisturbed.hit_ratio


def test_b_a_burst_of_siblings_computes_their_prefix_once_per_pod_that_runs_them() -> None:
    source = random.Random(3)
    prefix = tuple(source.randrange(1 << 29) for _ in range(1600))
    burst = [
        Arrival(at_s=0.1, group=0, prompt=prefix + tuple(source.randrange(1 << 29) for _ in range(128)), max_tokens=8)
        for _ in range(32)
    ]
    virtual = fleet()
    warm_up = sum(pod.scheduler.stats.computed_tokens for pod in virtual.pods)
    report = virtual.run(burst)
    num_pods = len({each.pod for each in report.outcomes})
    own = 32 * (128 + 8)
    assert report.num_failed == 0
    assert report.computed_tokens - warm_up <= num_pods * 1600 + own


def test_h_a_prefix_that_most_want_spreads_over_pods_before_its_queue_hurts() -> None:
    """36 requests a second of 1,024 tokens each, beside the prefix, are more than one pod computes."""

    def play(weights: list[float]) -> Report:
        traffic = SharedPrefixes(num_requests=600, weights=weights, suffix_tokens=1024)
        return VirtualFleet(4, Shape(num_blocks=3000)).run(traffic.arrivals(0))

    even = play([1.0] * NUM_GROUPS)
    hot = play([0.6 * (NUM_GROUPS - 1) / 0.4] + [1.0] * (NUM_GROUPS - 1))
    assert hot.num_failed == 0
    assert len({each.pod for each in hot.outcomes if each.group == 0 and each.cached_tokens}) > 1
    assert hot.ttft_s(0.99) <= 2 * even.ttft_s(0.99)


def test_d_a_rolling_drain_loses_no_request() -> None:
    virtual = fleet()
    for number, pod in enumerate(virtual.pods):
        virtual.at(2.0 + 2 * number, lambda pod=pod: virtual.drain(pod))  # type: ignore[misc]
        virtual.at(3.5 + 2 * number, lambda pod=pod: virtual.replace(pod))  # type: ignore[misc]
    report = virtual.run(traffic())
    assert report.num_failed == 0
    assert {each.pod for each in report.outcomes[-60:]} == {pod.name for pod in virtual.pods}
