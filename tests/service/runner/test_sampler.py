"""The sampler over a batch: each row as if alone, faults contained, drafts verified as if there were none."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.runner.sampler import SampleAsk, Sampler
from service.runner.plan_driver import make_spec

VOCAB = 400
KNOWN = np.array([5, 6, 7, 9, 9], np.int32)


def logits_of(num_rows, *, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (num_rows, VOCAB)).astype(np.float32)


def ask(first=0, *, known=KNOWN, drafts=(), **fields):
    return SampleAsk(make_spec(**fields), known, first, drafts)


def alone(logits, row_ask, *, eos=()):
    """The ask's logits in a batch of its own."""
    rows = logits[row_ask.first : row_ask.first + 1 + len(row_ask.drafts)]
    return Sampler(eos).sample(rows, [row_ask._replace(first=0)])[0]


def token(logits, *, eos=(), **fields):
    (result,) = Sampler(eos).sample(logits, [ask(**fields)])
    assert result.fault == ""
    return result.token_ids[0]


def test_nothing_to_sample_gives_nothing():
    assert Sampler([2]).sample(np.zeros((0, VOCAB), np.float32), []) == []


def test_greedy_takes_the_largest_logit_and_the_lowest_id_among_equals():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [30, 31, 399]] = 2.5
    assert token(logits) == 30


def test_greedy_and_sampled_rows_together_equal_their_solo_runs():
    """B080: whatever the batch, every row gives what it gives alone."""
    temperatures = [0, 1, 0, 0.7, 0, 0.2, 0, 1.5]
    logits = logits_of(8)
    asks = [
        ask(i, sampling={"temperature": t, "seed": 11 * i, "top_k": 50 * (i % 3)}, logprobs=i % 3 if i % 2 else None)
        for i, t in enumerate(temperatures)
    ]
    together = Sampler([]).sample(logits, asks)
    assert together == [alone(logits, row_ask) for row_ask in asks]
    greedy = [i for i, temperature in enumerate(temperatures) if temperature == 0]
    assert [together[i].token_ids for i in greedy] == logits[greedy].argmax(axis=1)[:, None].tolist()
    assert any(together[i].token_ids != [int(logits[i].argmax())] for i in (1, 3, 7))


def test_equal_seeds_give_equal_tokens_and_other_choices_others():
    """B078: the seed is not salted by the slot; the choices of one request do not share noise."""
    logits = np.repeat(np.zeros((1, VOCAB), np.float32), 6, axis=0)
    asks = [ask(i, request_id=f"r{i}", choice_index=i % 3, sampling={"temperature": 1.0, "seed": 5}) for i in range(6)]
    tokens = [result.token_ids[0] for result in Sampler([]).sample(logits, asks)]
    assert tokens[:3] == tokens[3:]
    assert len(set(tokens[:3])) == 3


def test_the_number_depends_on_the_position_not_on_the_step():
    logits = np.zeros((1, VOCAB), np.float32)
    sampling = {"temperature": 1.0, "seed": 5}
    tokens = {n: token(logits, known=np.arange(n, dtype=np.int32), sampling=sampling) for n in (3, 4, 5)}
    assert len(set(tokens.values())) == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"logit_bias": ((3, 1.0),)}])
def test_a_row_without_finite_logits_ends_alone(bad, sampling):
    """B084: one NaN or +inf anywhere in a row is its fault; the others do not notice."""
    logits = logits_of(4)
    asks = [ask(i, sampling=sampling) for i in range(4)]
    clean = Sampler([]).sample(logits.copy(), asks)
    logits[2, 17] = bad
    results = Sampler([]).sample(logits, asks)
    assert results[2] == ([], [], "non-finite logits", True)
    assert [results[i] for i in (0, 1, 3)] == [clean[i] for i in (0, 1, 3)]


def test_a_row_that_forbids_everything_is_a_fault_and_single_impossible_ids_are_not():
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[1, 33] = -5.0
    results = Sampler([]).sample(logits, [ask(0), ask(1)])
    assert [(r.token_ids, r.fault) for r in results] == [([], "non-finite logits"), ([33], "")]
    assert [r.is_poisoned for r in results] == [True, False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_that_overflows_is_no_fault(temperature):
    """The largest score that there is wins; the logits were fine."""
    logits = np.full((1, VOCAB), -1.0, np.float32)
    logits[0, 7] = 0.5
    sampling = {"temperature": temperature, "seed": 1, "repetition_penalty": 1e-308}
    assert Sampler([]).sample(logits, [ask(sampling=sampling)])[0][:3] == ([7], [], "")


def test_a_request_that_forbids_every_token_ends_alone_and_poisons_nothing():
    logits = logits_of(1)[:, :3]
    stops = {"min_tokens": 9, "stop_token_ids": frozenset({0, 1})}
    (result,) = Sampler([2]).sample(logits, [ask(**stops)])
    assert (result.token_ids, result.is_poisoned) == ([], False)
    assert "no token to choose" in result.fault


def test_an_error_while_sampling_one_row_ends_that_row_only(caplog):
    """B051: here a bias on an id that the vocabulary lacks, which the edge would have refused."""
    logits = logits_of(8)
    asks = [ask(i, sampling={"temperature": 0.8, "seed": i}) for i in range(8)]
    clean = Sampler([]).sample(logits, asks)
    asks[5] = ask(5, request_id="broken", sampling={"logit_bias": ((VOCAB, 1.0),)})
    results = Sampler([]).sample(logits, asks)
    assert results[5] == ([], [], "sampling failed", False)
    assert "request broken: sampling failed" in caplog.text
    assert [r for i, r in enumerate(results) if i != 5] == [r for i, r in enumerate(clean) if i != 5]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-4])
def test_a_bias_decides_at_any_temperature(temperature):
    """B085: +100 always wins, -100 never does, three hundred entries are fine."""
    logits = logits_of(1)
    best = int(logits[0].argmax())
    sampling = {"temperature": temperature, "seed": 3}
    assert token(logits, sampling=sampling | {"logit_bias": ((345, 100.0),)}) == 345
    assert token(logits, sampling=sampling | {"logit_bias": ((best, -100.0),)}) != best
    most = tuple((i, -100.0) for i in range(300))
    assert token(logits, sampling=sampling | {"logit_bias": most}) >= 300


def test_bias_comes_before_the_penalties():
    logits = np.zeros((1, VOCAB), np.float32)
    sampling = {"logit_bias": ((5, 4.0), (8, 3.0)), "repetition_penalty": 2.0}
    assert token(logits, known=KNOWN, sampling=sampling) == 8  # 4.0 of the known id 5 is halved


def test_presence_and_frequency_count_what_follows_the_prompt():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [5, 9]] = [2.0, 3.0]
    assert token(logits) == 9
    assert token(logits, sampling={"presence_penalty": 1.5}) == 5
    assert token(logits, sampling={"frequency_penalty": 0.4}) == 9
    assert token(logits, sampling={"frequency_penalty": 0.6}) == 5


def test_min_tokens_masks_eos_and_stop_ids_until_enough_output_is_there():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [2, 42, 50]] = [9.0, 8.0, 7.0]
    fields = {"stop_token_ids": frozenset({42}), "eos": [2]}
    assert token(logits, min_tokens=3, **fields) == 50
    assert token(logits, min_tokens=2, **fields) == 2  # KNOWN holds two output tokens
    assert token(logits, min_tokens=3, **fields, sampling={"temperature": 1e-3}) == 50


def test_resumed_tokens_count_as_output_for_min_tokens_and_penalties():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [2, 9, 50]] = [9.0, 8.0, 7.0]
    fields = {"resume_token_ids": (9, 9), "eos": [2]}
    assert token(logits, min_tokens=2, **fields) == 2
    assert token(logits, min_tokens=3, sampling={"presence_penalty": 1.5}, **fields) == 50


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 9},
        {"temperature": 0.8, "seed": 9, "top_k": 7, "top_p": 0.9},
        {"temperature": 1.0, "seed": 4, "presence_penalty": 1.5, "frequency_penalty": 1.0},
        {"repetition_penalty": 1.8},
    ],
)
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_verified_drafts_give_the_tokens_of_single_steps(sampling, num_right):
    """The logits of a position do not depend on the step, so one pass over k drafts must equal k + 1 steps."""
    logits = logits_of(4, seed=3)
    fields = {"sampling": sampling, "logprobs": 2, "min_tokens": 4}
    steps, known = [], KNOWN
    for index in range(4):
        (result,) = Sampler([2]).sample(logits[index : index + 1], [ask(known=known, **fields)])
        steps.append(result)
        known = np.append(known, np.array(result.token_ids, np.int32))
    tokens = [result.token_ids[0] for result in steps]
    drafts = [t if i < num_right else (t + 1) % VOCAB for i, t in enumerate(tokens[:3])]
    (verified,) = Sampler([2]).sample(logits, [ask(drafts=drafts, **fields)])
    assert verified.token_ids == tokens[: num_right + 1]
    assert verified.logprobs == [result.logprobs[0] for result in steps[: num_right + 1]]


def test_drafts_of_one_row_do_not_change_its_neighbours():
    logits = logits_of(6)
    best = logits.argmax(axis=1).tolist()
    asks = [ask(0, sampling={"temperature": 1.0}), ask(1, drafts=best[1:4]), ask(5, sampling={"temperature": 1.0})]
    results = Sampler([]).sample(logits, asks)
    assert results[1].token_ids == best[1:5]
    assert [results[0], results[2]] == [alone(logits, asks[0]), alone(logits, asks[2])]


def test_a_bad_position_behind_a_rejected_draft_is_never_looked_at():
    logits = logits_of(3)
    logits[2, 0] = np.nan
    best = int(logits[0].argmax())
    (rejected,) = Sampler([]).sample(logits, [ask(drafts=[best + 1, 0])])
    assert rejected == ([best], [], "", False)
    (reached,) = Sampler([]).sample(logits, [ask(drafts=[best, int(logits[1].argmax())])])
    assert reached.fault == "non-finite logits"


def test_logprobs_are_of_the_raw_logits_whatever_the_parameters():
    """B072, B073: one entry a token, alternatives best first, finite, before bias and temperature."""
    logits = logits_of(1)
    expected = logits[0].astype(np.float64) - np.log(np.exp(logits[0].astype(np.float64)).sum())
    sampling = {"temperature": 0.3, "seed": 1, "logit_bias": ((345, 100.0),), "top_k": 2}
    (result,) = Sampler([]).sample(logits, [ask(sampling=sampling, logprobs=3)])
    (score,) = result.logprobs
    assert (score.token_id, result.token_ids) == (345, [345])
    assert score.logprob == pytest.approx(expected[345])
    assert score.top_ids == np.argsort(-expected)[:3].tolist()


def test_logprobs_without_alternatives_are_still_given():
    (result,) = Sampler([]).sample(logits_of(1), [ask(logprobs=0)])
    assert len(result.logprobs) == 1
    assert result.logprobs[0].top_ids == []
