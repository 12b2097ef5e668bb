"""Bias, penalties and mask, against the formulas written out."""

from __future__ import annotations

import numpy as np
from headstart.contract.request import SamplingParams
from headstart.runner.penalties import add_bias, has_penalties, mask, penalize

HISTORY = np.array([0, 1, 1, 2, 2, 3], np.int32)


def test_repetition_shrinks_positive_and_stretches_negative_scores_of_prompt_and_output():
    scores = np.array([2.0, -2.0, 0.0, 4.0, 5.0])
    penalize(scores, SamplingParams(repetition_penalty=2.0), HISTORY, 3)
    assert scores.tolist() == [1.0, -4.0, 0.0, 2.0, 5.0]


def test_no_penalty_makes_a_score_infinite_and_what_the_model_forbids_stays_forbidden():
    scores = np.array([2.0, -2e300, -np.inf, 0.0, 1.0])
    penalize(scores, SamplingParams(repetition_penalty=1e-308), HISTORY, 3)
    assert scores[0] == np.finfo(np.float64).max
    assert (scores[2], scores[3], scores[4]) == (-np.inf, 0.0, 1.0)
    penalize(scores, SamplingParams(repetition_penalty=1e308, presence_penalty=2.0, frequency_penalty=2.0), HISTORY, 3)
    assert np.isfinite(scores[[0, 1, 3, 4]]).all()


def test_presence_and_frequency_count_the_output_only():
    scores = np.zeros(5)
    penalize(scores, SamplingParams(presence_penalty=1.0, frequency_penalty=0.25), HISTORY, 3)
    assert scores.tolist() == [0.0, 0.0, -1.5, -1.25, 0.0]


def test_negative_penalties_favour_what_was_said():
    scores = np.zeros(5)
    penalize(scores, SamplingParams(presence_penalty=-1.0, frequency_penalty=-0.5), HISTORY, 3)
    assert scores.tolist() == [0.0, 0.0, 2.0, 1.5, 0.0]


def test_a_request_without_output_has_nothing_to_count():
    scores = np.ones(5)
    penalize(scores, SamplingParams(presence_penalty=1.0, frequency_penalty=1.0), HISTORY[:3], 3)
    assert scores.tolist() == [1.0] * 5


def test_default_parameters_need_no_history():
    assert not has_penalties(SamplingParams())
    assert has_penalties(SamplingParams(repetition_penalty=1.1))
    assert has_penalties(SamplingParams(presence_penalty=-0.1))
    assert has_penalties(SamplingParams(frequency_penalty=0.1))


def test_bias_adds_and_mask_forbids():
    scores = np.ones(4)
    add_bias(scores, ((1, 100.0), (3, -100.0)))
    mask(scores, {0, 2})
    assert scores.tolist() == [-np.inf, 101.0, -np.inf, -99.0]
