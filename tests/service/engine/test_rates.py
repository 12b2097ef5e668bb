"""Rates against steps whose true cost is known."""

import pytest
from headstart.core.step import StepPlan
from headstart.engine.rates import StepRates


def plan(*num_tokens, drafts=None):
    count = len(num_tokens)
    return StepPlan(
        step=1,
        request_ids=[f"r{i}" for i in range(count)],
        starts=[0] * count,
        num_tokens=list(num_tokens),
        new_block_ids=[[]] * count,
        samples=[True] * count,
        drafts=drafts or {},
    )


def test_nothing_is_known_before_the_first_step():
    rates = StepRates()
    assert (rates.prefill_tokens_per_s, rates.decode_step_s(1)) == (0.0, 0.0)


def test_decode_steps_do_not_change_the_prefill_rate():
    rates = StepRates()
    rates.observe(plan(1000), 0.5)
    rates.observe(plan(1, 1, 1), 0.02)
    assert rates.prefill_tokens_per_s == pytest.approx(2000)
    assert rates.decode_step_s(3) == pytest.approx(0.02)


def test_rows_with_drafts_are_decodes():
    rates = StepRates()
    rates.observe(plan(4, 1, drafts={0: [7, 8, 9]}), 0.03)
    assert (rates.prefill_tokens_per_s, rates.decode_step_s(2)) == (0.0, 0.03)


def test_the_decodes_beside_a_prefill_are_not_charged_to_it():
    rates = StepRates()
    rates.observe(plan(1, 1), 0.02)
    rates.observe(plan(1, 1, 500), 0.02 + 0.25)
    assert rates.prefill_tokens_per_s == pytest.approx(2000)


def test_a_large_batch_does_not_make_a_lone_request_look_slow():
    rates = StepRates()
    for _ in range(30):
        rates.observe(plan(1), 0.008)
    for _ in range(30):
        rates.observe(plan(*[1] * 100), 0.06)
    assert rates.decode_step_s(0) == rates.decode_step_s(1) == pytest.approx(0.008)
    assert rates.decode_step_s(100) == rates.decode_step_s(5000) == pytest.approx(0.06)


def test_nothing_is_said_of_fewer_rows_than_any_step_had():
    rates = StepRates()
    rates.observe(plan(*[1] * 64), 0.064)
    assert (rates.decode_step_s(16), rates.decode_step_s(64)) == (0.0, 0.064)


def test_a_small_chunk_weighs_little():
    rates = StepRates()
    rates.observe(plan(2000), 1.0)
    rates.observe(plan(2), 0.01)
    assert rates.prefill_tokens_per_s == pytest.approx(2000, rel=0.02)


def test_a_change_of_speed_is_followed_within_some_tens_of_steps():
    rates = StepRates()
    rates.observe(plan(100), 1.0)
    rates.observe(plan(1), 1.0)
    for _ in range(40):
        rates.observe(plan(100), 0.1)
        rates.observe(plan(1), 0.01)
    assert rates.prefill_tokens_per_s == pytest.approx(1000, rel=0.15)
    assert rates.decode_step_s(1) == pytest.approx(0.01, rel=2)


def test_steps_without_duration_divide_nothing_by_zero():
    rates = StepRates()
    rates.observe(plan(100), 0.0)
    rates.observe(plan(1, 100), 0.0)
    assert rates.prefill_tokens_per_s == 0.0
