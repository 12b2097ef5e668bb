"""One token out of scores: the filters' edges, ties, and the frequencies of the draw."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.contract.request import SamplingParams
from headstart.errors import InternalError
from headstart.runner.choice import choose, largest
from headstart.runner.philox import uniform

NUMBERS = [0.0, 1e-300, 0.1, 0.5, 0.9, 0.999999, 1 - 2**-53]
SCORES = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0, -np.inf, 1.0])


def drawn(scores, *, num_numbers=500, **params):
    """The set of ids that many different numbers reach."""
    numbers = [*NUMBERS, *np.linspace(0, 1, num_numbers, endpoint=False).tolist()]
    return {choose(scores, SamplingParams(**params), number) for number in numbers}


def naive_kept(scores, *, temperature, top_k, top_p, min_p):
    """The kept ids, by the book: sort everything, then cut three times."""
    order = sorted(np.flatnonzero(scores > -np.inf).tolist(), key=lambda i: (-scores[i], i))
    if top_k:
        order = order[:top_k]
    weights = np.exp((scores[order] - scores[order[0]]) / temperature)
    before = np.cumsum(weights) - weights
    order = [i for i, mass in zip(order, before, strict=True) if mass == 0 or mass < top_p * weights.sum() - 1e-12]
    weights = weights[: len(order)]
    return {i for i, weight in zip(order, weights, strict=True) if weight >= min_p}


@pytest.mark.parametrize("top_k", [0, 1, 2, 3, 8, 9])
@pytest.mark.parametrize("top_p", [0.3, 0.72, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_the_draw_reaches_exactly_the_ids_that_the_filters_keep(top_k, top_p, min_p):
    expected = naive_kept(SCORES, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    assert drawn(SCORES, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p) == expected


@pytest.mark.parametrize("seed", range(6))
def test_filters_agree_with_a_full_sort_on_a_large_vocabulary(seed):
    scores = np.random.default_rng(seed).normal(0, 2.5, 3000).round(2)
    for top_k, top_p, min_p in [(0, 0.5, 0), (0, 0.97, 0), (40, 0.8, 0.05), (0, 1.0, 0.3), (700, 0.999, 0)]:
        kept = naive_kept(scores, temperature=1.3, top_k=top_k, top_p=top_p, min_p=min_p)
        params = {"temperature": 1.3, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        reached = drawn(scores, num_numbers=100, **params)
        assert reached <= kept
        assert choose(scores, SamplingParams(**params), 0.0) == min(kept)
        assert choose(scores, SamplingParams(**params), 1 - 2**-53) == max(kept)


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_p": 0.0},
        {"top_p": 1e-9},
        {"temperature": 1e-300},
        {"temperature": 0.0},
        {"top_k": 1, "min_p": 1},
    ],
)
def test_the_tightest_filters_leave_the_lowest_of_the_most_likely_ids(params):
    """B082: at least one token survives, and top_k=1 equals greedy, ties included."""
    ids = drawn(SCORES, **({"temperature": 1.0} | params))
    assert ids == ({1, 3} if params.get("temperature") == 1e-300 else {1})


def test_min_p_of_one_keeps_all_of_the_most_likely():
    assert drawn(SCORES, min_p=1.0) == {1, 3}


@pytest.mark.parametrize("top_k", [-1, 0, 8, 9, 10**9])
def test_top_k_off_or_as_large_as_the_vocabulary_keeps_every_possible_id(top_k):
    assert drawn(SCORES, top_k=top_k) == {0, 1, 2, 3, 4, 5, 7}


def test_top_p_cuts_what_top_k_left_not_the_whole_distribution():
    scores = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    assert drawn(scores, top_p=0.5) == {0, 1}
    assert drawn(scores, top_k=2, top_p=0.5) == {0}


def test_forbidden_ids_are_never_drawn_even_at_the_ends_of_the_vocabulary():
    scores = np.full(1000, -np.inf)
    scores[[300, 511, 512]] = 0.0
    assert drawn(scores) == {300, 511, 512}
    assert choose(scores, SamplingParams(), 0.0) == 300
    assert choose(scores, SamplingParams(), 1 - 2**-53) == 512


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers_raise(bad, temperature):
    scores = SCORES.copy()
    scores[4] = bad
    with pytest.raises(InternalError, match="no token to choose"):
        choose(scores, SamplingParams(temperature=temperature), 0.5)


def test_scores_that_forbid_everything_raise():
    with pytest.raises(InternalError, match="no token to choose"):
        choose(np.full(9, -np.inf), SamplingParams(), 0.5)


def test_frequencies_over_seeds_follow_the_softmax():
    scores = np.random.default_rng(1).normal(0, 1.5, 12)
    num_draws = 20_000
    numbers = uniform(range(num_draws), [0] * num_draws, [17] * num_draws).tolist()
    params = SamplingParams(temperature=0.7)
    counts = np.bincount([choose(scores, params, number) for number in numbers], minlength=12)
    expected = np.exp(scores / 0.7) / np.exp(scores / 0.7).sum()
    bounds = 5 * np.sqrt(expected * (1 - expected) / num_draws) + 1e-4
    assert np.all(np.abs(counts / num_draws - expected) < bounds)


def test_every_number_lands_where_a_plain_running_sum_puts_it():
    scores = np.random.default_rng(2).normal(0, 2, 5000)
    cumulative = np.cumsum(np.exp(scores - scores.max()))
    numbers = np.random.default_rng(3).random(500)
    expected = np.searchsorted(cumulative, numbers * cumulative[-1], side="right").tolist()
    assert [choose(scores, SamplingParams(), number) for number in numbers.tolist()] == expected


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 20])
def test_the_largest_values_are_taken_with_the_lowest_indices_among_equals(count):
    values = np.array([1.0, 3.0, -2.0, 3.0, 1.0, 1.0, -np.inf, 0.0])
    expected = sorted(sorted(range(8), key=lambda i: (-values[i], i))[:count])
    assert largest(values, count).tolist() == expected


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_the_largest_of_many_values_agree_with_a_full_sort(decimals):
    rng = np.random.default_rng(decimals)
    for _ in range(40):
        values = rng.normal(0, 2, rng.integers(1, 3000)).round(decimals)
        values[rng.random(len(values)) < 0.3] = -np.inf
        for count in (1, 2, 20, 500):
            expected = np.sort(np.argsort(-values, kind="stable")[:count])
            assert largest(values, count).tolist() == expected.tolist()
