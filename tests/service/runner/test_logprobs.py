"""Reported log probabilities: a log-softmax, its order, its floor."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.errors import InternalError
from headstart.runner.logprobs import LOGPROB_FLOOR, token_logprobs


def test_logprobs_are_the_log_softmax_of_the_logits():
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    score = token_logprobs(logits, 123, 20)
    assert score.token_id == 123
    assert score.logprob == pytest.approx(expected[123], abs=1e-12)
    assert score.top_ids == np.argsort(-expected, kind="stable")[:20].tolist()
    assert score.top_logprobs == pytest.approx(np.sort(expected)[::-1][:20].tolist(), abs=1e-12)


def test_equal_alternatives_come_lowest_id_first():
    assert token_logprobs(np.array([0, 2, 1, 2, 1], np.float32), 0, 4).top_ids == [1, 3, 2, 4]


def test_no_alternatives_are_given_when_none_are_asked_for():
    score = token_logprobs(np.zeros(4, np.float32), 2, 0)
    assert score.logprob == pytest.approx(-np.log(4))
    assert (score.top_ids, score.top_logprobs) == ([], [])


def test_impossible_tokens_are_reported_with_a_finite_floor():
    """B073: a reply never holds an infinity."""
    logits = np.array([0.0, -np.inf, -np.inf], np.float32)
    assert token_logprobs(logits, 1, 3) == (1, LOGPROB_FLOOR, [0, 1, 2], [0.0, LOGPROB_FLOOR, LOGPROB_FLOOR])


@pytest.mark.parametrize("logits", [[0, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
def test_logits_without_a_distribution_raise(logits):
    with pytest.raises(InternalError, match="non-finite logits"):
        token_logprobs(np.array(logits, np.float32), 0, 1)
