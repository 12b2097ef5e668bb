"""The runner as a whole, over a real tiny model that reads its K/V through the page table.

The reference is always the same request alone, cold, in one go, without drafts: nothing else may change its text.
"""

from __future__ import annotations

import numpy as np
import pytest
from headstart.core.step import StartedRow, StepPlan
from headstart.runner.model_runner import BAD_DRAFT, ModelRunner
from service.runner.hash_forward import HashForward
from service.runner.plan_driver import Driver, make_spec

BLOCK = 4
VOCAB = 97
NUM_BLOCKS = 2000
KINDS = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.0, "seed": 1, "presence_penalty": 2.0, "frequency_penalty": 1.0},
    {"repetition_penalty": 1.5, "logit_bias": ((3, 1.5), (4, -2.0))},
    {"temperature": 1.5, "seed": 3, "min_p": 0.2},
]


def make_driver(*, num_drafts=0, **forward):
    model = HashForward(vocab_size=VOCAB, num_blocks=NUM_BLOCKS, block_size=BLOCK, **forward)
    runner = ModelRunner(model, block_size=BLOCK, eos_token_ids=[2], num_drafts=num_drafts)
    driver = Driver(runner, block_size=BLOCK)
    driver.model = model
    return driver


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def solo(spec, **forward):
    """Output and logprobs of the request alone and cold."""
    driver = make_driver(**forward)
    driver.add(spec)
    return driver.run(spec.request_id), driver.logprobs[spec.request_id]


def mixed_specs(**fields):
    return [
        make_spec(f"r{i}", prompt(i, 3 + 5 * i), sampling=KINDS[i % len(KINDS)], logprobs=2, **fields) for i in range(8)
    ]


def test_the_tiny_model_depends_on_every_token_before():
    tokens = prompt(0, 20)
    reference = solo(make_spec(prompt=tokens))[0]
    changed = [solo(make_spec(prompt=[*tokens[:i], tokens[i] ^ 1, *tokens[i + 1 :]]))[0] for i in (0, 7, 19)]
    assert reference not in changed


@pytest.mark.parametrize("chunk", [1, 3, 4, 7])
@pytest.mark.parametrize("sampling", KINDS)
def test_a_chunked_prompt_gives_the_text_of_a_whole_one(sampling, chunk):
    spec = make_spec(prompt=prompt(1, 21), sampling=sampling, logprobs=1)
    driver = make_driver()
    driver.add(spec)
    assert (driver.run("a", chunk=chunk), driver.logprobs["a"]) == solo(spec)


@pytest.mark.parametrize("chunk", [5, 1 << 30])
def test_each_row_of_a_batch_gives_the_text_and_logprobs_of_its_solo_run(chunk):
    """B080, B082: greedy, sampled, penalised and biased rows together, prompts and decodes mixed."""
    driver = make_driver()
    specs = mixed_specs()
    for spec in specs:
        driver.add(spec)
    outputs = driver.run_all(chunk=chunk)
    assert max(driver.model.batch_sizes) > 8
    assert {s.request_id: (outputs[s.request_id], driver.logprobs[s.request_id]) for s in specs} == {
        s.request_id: solo(s) for s in specs
    }


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_preempted_request_goes_on_with_the_same_text(sampling, num_steps):
    spec = make_spec(prompt=prompt(2, 9), sampling=sampling)
    driver = make_driver()
    for neighbour in mixed_specs():
        driver.add(neighbour)
    driver.add(spec)
    for _ in range(num_steps):
        driver.step()
    driver.preempt_and_resume("a")
    driver.step({"r1": 1})
    assert driver.run("a", chunk=5) == solo(spec)[0]


@pytest.mark.parametrize("sampling", KINDS)
def test_a_request_resumed_from_emitted_tokens_goes_on_with_the_same_text(sampling):
    """On another pod, with what was delivered so far counted as completion."""
    whole = solo(make_spec(prompt=prompt(3, 10), sampling=sampling, min_tokens=8))[0]
    resumed = make_spec(prompt=prompt(3, 10), sampling=sampling, min_tokens=8, resume_token_ids=tuple(whole[:5]))
    assert solo(resumed)[0] == whole


@pytest.mark.parametrize("sampling", KINDS)
def test_drafts_change_nothing_but_the_number_of_steps(sampling):
    spec = make_spec(prompt=prompt(4, 12), sampling=sampling, max_tokens=40, logprobs=1)
    driver = make_driver(num_drafts=3, window=1, spread=30.0)
    driver.add(spec)
    output, logprobs = solo(spec, window=1, spread=30.0)
    assert driver.run("a") == output
    assert driver.logprobs["a"] == logprobs
    if sampling == {}:
        assert len(driver.model.batch_sizes) < 25


def test_drafts_in_a_batch_equal_solo_runs_without():
    driver = make_driver(num_drafts=4, window=1, spread=30.0)
    specs = mixed_specs(max_tokens=30)
    for spec in specs:
        driver.add(spec)
    outputs = driver.run_all()
    assert outputs == {spec.request_id: solo(spec, window=1, spread=30.0)[0] for spec in specs}


def test_wrong_drafts_leave_no_trace():
    spec = make_spec(prompt=prompt(5, 6), max_tokens=10)
    driver = make_driver()
    driver.add(spec)
    while len(driver.output("a")) < 10:
        driver.drafts["a"] = [1, 2, 3]
        driver.step()
    assert driver.output("a")[:10] == solo(spec)[0]


def test_no_drafts_are_proposed_beyond_the_last_token():
    driver = make_driver(num_drafts=8, window=1, spread=30.0)
    driver.add(make_spec(prompt=[5, 6] * 8, max_tokens=12))
    assert len(driver.run("a")) == 12


def test_a_draft_that_is_no_token_id_ends_its_row_only():
    driver = make_driver()
    for request_id in "ab":
        driver.add(make_spec(request_id, prompt(6, 5)))
    driver.step()
    driver.drafts["a"] = [3, VOCAB]
    output = driver.step()
    assert driver.faults == {"a": BAD_DRAFT}
    assert output.poisoned == frozenset()
    assert driver.run("b") == solo(make_spec("b", prompt(6, 5)))[0]


def test_a_row_with_non_finite_logits_ends_alone():
    """B084: the three others equal their solo runs."""
    driver = make_driver()
    driver.model.poisoned_tokens = {50}
    specs = {f"r{i}": make_spec(f"r{i}", [10 + i, 11, 12], max_tokens=1) for i in range(3)}
    specs["bad"] = make_spec("bad", [10, 11, 50])
    for spec in specs.values():
        driver.add(spec)
    output = driver.step()
    assert driver.faults == {"bad": "non-finite logits"}
    assert output.poisoned == {3}
    assert output.sampled[3] == []
    assert [driver.output(f"r{i}") for i in range(3)] == [solo(specs[f"r{i}"])[0] for i in range(3)]


def test_a_row_that_its_own_parameters_end_poisons_nothing(caplog):
    driver = make_driver()
    driver.add(make_spec("bad", [10, 11, 12], sampling={"logit_bias": ((VOCAB, 1.0),)}))
    driver.add(make_spec("good", [10, 11, 12]))
    output = driver.step()
    assert driver.faults == {"bad": "sampling failed"}
    assert output.poisoned == frozenset()
    assert driver.output("good") == solo(make_spec("good", [10, 11, 12]))[0][:1]


def test_nothing_of_a_finished_request_reaches_the_next_owner_of_its_slot():
    """B086: A has penalty, bias and seed; B starts plain in the step in which A's row is forgotten."""
    heavy = {"temperature": 1.0, "seed": 5, "presence_penalty": 2.0, "logit_bias": ((8, 50.0),)}
    driver = make_driver()
    driver.add(make_spec("a", prompt(7, 60), sampling=heavy, max_tokens=5, min_tokens=5))
    assert driver.run("a") == [8] * 5
    driver.finish("a")
    plain = make_spec("b", prompt(8, 6), logprobs=3)
    driver.add(plain)
    assert (driver.run("b"), driver.logprobs["b"]) == solo(plain)


def test_a_failed_forward_is_raised_by_result_and_the_runner_goes_on():
    driver = make_driver()
    driver.add(make_spec("a", prompt(9, 5)))
    driver.model.error = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        driver.step()
    driver.model.error = None
    driver.finish("a")
    spec = make_spec("b", prompt(9, 5))
    driver.add(spec)
    assert driver.run("b") == solo(spec)[0]


def test_submit_does_not_raise_for_a_plan_that_does_not_fit():
    runner = make_driver().runner
    spec = make_spec("a", [5, 6, 7])
    plan = StepPlan(1, ["a"], [0], [3], [[]], [True], started=[StartedRow(spec, [5, 6, 7], 0, [])])
    with pytest.raises(ValueError, match="too few blocks"):
        runner.submit(plan).result()
    again = StepPlan(
        2, ["a"], [0], [3], [[1]], [True], finished=["a", "a"], started=[StartedRow(spec, [5, 6, 7], 0, [])]
    )
    assert runner.submit(again).result().sampled == [solo(spec)[0][:1]]


def test_token_ids_beyond_the_vocabulary_never_reach_the_model():
    driver = make_driver()
    driver.add(make_spec("a", [5, VOCAB]))
    with pytest.raises(ValueError, match="token ids must lie in"):
        driver.step()
    assert driver.model.batch_sizes == []


def test_a_plan_without_rows_runs_nothing():
    driver = make_driver()
    driver.add(make_spec("a", [5, 6]))
    driver.step()
    output = driver.runner.submit(StepPlan(5, [], [], [], [], [], finished=["a"])).result()
    assert output.sampled == []
    assert driver.model.batch_sizes == [2]


def test_partial_prefills_give_no_tokens():
    driver = make_driver()
    driver.add(make_spec("a", prompt(0, 10)))
    driver.add(make_spec("b", prompt(1, 3)))
    output = driver.step({"a": 6, "b": 3})
    assert output.sampled[0] == []
    assert len(output.sampled[1]) == 1


def test_a_read_only_row_computes_from_shared_blocks_and_writes_nothing():
    """A hit of all tokens but the last: the same text, and not a bit of the storage changes."""
    driver = make_driver()
    driver.add(make_spec("a", prompt(3, 8)))
    driver.step()
    shared = list(driver.blocks["a"])
    storage = driver.model.kv.copy()
    spec = make_spec("b", prompt(3, 8))
    driver.add(spec)
    driver.started[0] = StartedRow(spec, list(spec.prompt_token_ids), 7, shared)
    driver.computed["b"], driver.blocks["b"] = 7, shared
    driver.step({"b": 1}, read_only=["b"])
    assert np.array_equal(driver.model.kv, storage)
    assert driver.run("b") == solo(spec)[0]


def test_two_identical_prompts_of_one_step_may_share_blocks():
    """All K/V of the batch is written before anything is read, so the second computes its tail only."""
    driver = make_driver()
    for request_id in "ab":
        driver.add(make_spec(request_id, prompt(3, 10)))
    shared = driver.blocks["a"] = [1, 2]
    driver.next_block = 3
    driver.started[0] = driver.started[0]._replace(block_ids=[1, 2])
    driver.started[1] = driver.started[1]._replace(block_ids=[1, 2], num_computed=8)
    driver.computed["b"], driver.blocks["b"] = 8, list(shared)
    driver.step()
    assert driver.output("a") == driver.output("b") == solo(make_spec(prompt=prompt(3, 10)))[0][:1]


@pytest.mark.parametrize("chunk", [1, 4, 6, 1 << 30])
def test_prompt_logprobs_cover_every_prompt_token_but_the_first_however_chunked(chunk):
    """B144: each step reports the positions that it computed, and asks for no other logits."""
    tokens = prompt(11, 14)
    driver = make_driver()
    driver.add(make_spec("a", tokens, prompt_logprobs=2))
    for neighbour in mixed_specs():
        driver.add(neighbour)
    while not driver.output("a"):
        driver.step(dict.fromkeys(driver.known, chunk))
    scores = driver.prompt_logprobs["a"]
    assert [score.token_id for score in scores] == tokens[1:]
    assert all(len(score.top_ids) == 2 for score in scores)
    whole = make_driver()
    whole.add(make_spec("a", tokens, prompt_logprobs=2))
    whole.step()
    assert scores == whole.prompt_logprobs["a"]


def test_a_prompt_position_without_finite_logits_ends_its_row_only():
    driver = make_driver()
    driver.model.poisoned_tokens = {50}
    driver.add(make_spec("a", [5, 50, 6, 7], prompt_logprobs=0))
    driver.add(make_spec("b", [5, 50, 6, 7]))
    output = driver.step()
    assert driver.faults == {"a": "non-finite logits"}
    assert output.poisoned == {0}
    assert output.sampled[0] == []
    assert driver.output("b") == solo(make_spec(prompt=[5, 50, 6, 7]))[0][:1]
