"""The runner without weights: one text for one prefix, however it is computed."""

from __future__ import annotations

import pytest
from headstart.core.step import StartedRow, StepPlan
from headstart.runner.logprobs import LOGPROB_FLOOR
from headstart.runner.simulated_runner import SimulatedRunner
from service.runner.plan_driver import Driver, make_spec

PROMPT = tuple(range(100, 121))


def make_driver(*, first_token_id=17, vocab_size=1000, sleeps=None, step_seconds=0.0, token_seconds=0.0):
    runner = SimulatedRunner(
        vocab_size=vocab_size,
        first_token_id=first_token_id,
        block_size=4,
        step_seconds=step_seconds,
        token_seconds=token_seconds,
        sleep=(sleeps if sleeps is not None else []).append,
    )
    return Driver(runner, block_size=4)


def solo(spec):
    driver = make_driver()
    driver.add(spec)
    return driver.run(spec.request_id)


def test_the_text_never_changes():
    assert solo(make_spec(prompt=PROMPT, max_tokens=4)) == [43, 18, 117, 833]


def test_every_token_of_the_prefix_counts_and_the_sampling_does_not():
    reference = solo(make_spec(prompt=PROMPT))
    assert solo(make_spec(prompt=PROMPT, sampling={"temperature": 1.0, "seed": 4})) == reference
    for index in (0, 10, 20):
        changed = list(PROMPT)
        changed[index] += 1
        assert solo(make_spec(prompt=changed)) != reference


@pytest.mark.parametrize("chunk", [1, 4, 5])
def test_chunked_batched_and_cold_give_the_same_tokens(chunk):
    specs = [make_spec(f"r{i}", PROMPT[: 3 + 6 * i]) for i in range(4)]
    driver = make_driver()
    for spec in specs:
        driver.add(spec)
    assert driver.run_all(chunk=chunk) == {spec.request_id: solo(spec) for spec in specs}


def test_preempted_and_resumed_requests_go_on_with_the_same_tokens():
    spec = make_spec(prompt=PROMPT)
    driver = make_driver()
    driver.add(spec)
    for _ in range(3):
        driver.step()
    driver.preempt_and_resume("a")
    reference = solo(spec)
    assert driver.run("a", chunk=6) == reference
    assert solo(make_spec(prompt=PROMPT, resume_token_ids=tuple(reference[:5]))) == reference


def test_right_drafts_are_accepted_and_wrong_ones_leave_no_trace():
    reference = solo(make_spec(prompt=PROMPT))
    driver = make_driver()
    driver.add(make_spec(prompt=PROMPT))
    driver.drafts["a"] = [reference[0], reference[1], 0]
    assert driver.step().sampled == [reference[:3]]
    driver.drafts["a"] = [0, 0]
    assert driver.step().sampled == [reference[3:4]]
    assert driver.run("a") == reference


def test_tokens_stay_in_their_range():
    tokens = solo(make_spec(prompt=PROMPT, max_tokens=300))
    assert min(tokens) >= 17
    assert max(tokens) < 1000
    assert len(set(tokens)) > 200
    with pytest.raises(ValueError, match="first_token_id"):
        make_driver(first_token_id=1000)


def test_a_step_takes_the_time_of_its_tokens():
    sleeps = []
    driver = make_driver(sleeps=sleeps, step_seconds=0.5, token_seconds=0.25)
    driver.add(make_spec(prompt=PROMPT))
    driver.step({"a": 10})
    driver.step()
    driver.step()
    assert sleeps == [0.5 + 10 * 0.25, 0.5 + 11 * 0.25, 0.5 + 0.25]


def test_no_time_means_no_sleep():
    sleeps = []
    driver = make_driver(sleeps=sleeps)
    driver.add(make_spec(prompt=PROMPT))
    driver.run("a")
    assert sleeps == []


def test_logprobs_say_that_the_next_token_is_certain():
    driver = make_driver()
    reference = solo(make_spec(prompt=PROMPT))
    driver.add(make_spec(prompt=(*PROMPT, *reference[:2]), logprobs=3, prompt_logprobs=1))
    driver.step({"a": 9})
    driver.step()
    assert driver.logprobs["a"] == [(reference[2], 0.0, [reference[2]], [0.0])]
    scores = driver.prompt_logprobs["a"]
    assert [score.token_id for score in scores] == [*PROMPT[1:], *reference[:2]]
    assert [score.logprob for score in scores] == [LOGPROB_FLOOR] * 20 + [0.0, 0.0]


def test_plans_are_checked_as_for_a_model():
    runner = make_driver().runner
    spec = make_spec("a", PROMPT)
    plan = StepPlan(1, ["a"], [0], [21], [[1]], [True], started=[StartedRow(spec, list(PROMPT), 0, [])])
    with pytest.raises(ValueError, match="too few blocks"):
        runner.submit(plan).result()
    assert runner.submit(StepPlan(2, [], [], [], [], [], finished=["a"])).result().sampled == []


def test_a_request_id_that_is_used_again_starts_from_its_own_prefix():
    driver = make_driver()
    driver.add(make_spec("a", PROMPT))
    driver.run("a")
    driver.finish("a")
    other = make_spec("a", PROMPT[::-1])
    driver.add(other)
    assert driver.run("a") == solo(other)
