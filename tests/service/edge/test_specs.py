import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.request import SamplingParams
from headstart.edge.limits import Limits
from headstart.edge.specs import build_specs, choice_request_id, is_first_choice
from headstart.errors import InvalidRequestError

LIMITS = Limits(model="tiny", max_len=256, vocab_size=1000)


def specs(prompt=(1, 2, 3), **fields):
    if "text" not in fields:
        fields["token_ids"] = pb.TokenIds(ids=prompt)
    return build_specs(pb.GenerateRequest(**fields), prompt, limits=LIMITS)


def sampling(**fields):
    return specs(sampling=pb.Sampling(seed=5, **fields))[0].sampling


def test_absent_fields_take_the_documented_defaults():
    (spec,) = specs(prompt=(1,) * 31)
    assert spec.max_tokens == 256 - 31
    assert (spec.min_tokens, spec.logprobs, spec.prompt_logprobs, spec.resume_token_ids) == (0, None, None, ())
    assert sampling() == SamplingParams(seed=5)


def test_max_tokens_never_exceeds_what_the_context_leaves():
    assert specs(max_tokens=5)[0].max_tokens == 5
    assert specs(max_tokens=1000)[0].max_tokens == 253


def test_every_choice_gets_its_index_and_an_id_of_its_own_and_only_the_first_reports_on_the_prompt():
    choices = specs(n=3, request_id="r", prompt_logprobs=2, logprobs=0)
    assert [spec.choice_index for spec in choices] == [0, 1, 2]
    assert [spec.request_id for spec in choices] == ["r", "r#1", "r#2"]
    assert [spec.prompt_logprobs for spec in choices] == [2, None, None]
    assert [spec.logprobs for spec in choices] == [0, 0, 0]
    assert [is_first_choice(spec.request_id) for spec in choices] == [True, False, False]
    assert choice_request_id("r", 0) == "r"


def test_a_missing_seed_is_drawn_once_for_all_choices_and_anew_for_each_request():
    first, second = specs(n=2), specs(n=2)
    assert first[0].sampling.seed == first[1].sampling.seed
    assert first[0].sampling.seed != second[0].sampling.seed
    assert specs(sampling=pb.Sampling(seed=0))[0].sampling.seed == 0


def test_a_missing_request_id_is_made_and_differs_each_time():
    assert specs()[0].request_id != specs()[0].request_id


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (1, 1), (999, 999), (1000, 0), (49153, 0)])
def test_a_top_k_that_excludes_nothing_is_off(top_k, expected):
    assert sampling(top_k=top_k).top_k == expected


def test_top_p_0_means_the_most_likely_token_only():
    assert (sampling(top_p=0.0).top_k, sampling(top_p=0.0).top_p) == (1, 1.0)
    assert sampling(top_p=1e-9).top_p == 1e-9


def test_given_sampling_fields_arrive_even_when_they_are_zero():
    params = sampling(temperature=0.0, min_p=0.5, repetition_penalty=2.0, logit_bias={7: 1.0, 3: -1.0})
    assert (params.temperature, params.min_p, params.repetition_penalty) == (0.0, 0.5, 2.0)
    assert params.logit_bias == ((3, -1.0), (7, 1.0))


def test_each_choice_resumes_from_its_own_tokens():
    resume = pb.Resume(choices=[pb.Resume.Choice(token_ids=[4, 5]), pb.Resume.Choice()])
    assert [spec.resume_token_ids for spec in specs(n=2, resume=resume)] == [(4, 5), ()]


def test_a_resume_may_hold_all_tokens_that_fit():
    resume = pb.Resume(choices=[pb.Resume.Choice(token_ids=[1] * 6)])
    assert specs((1,) * 250, resume=resume)[0].resume_token_ids == (1,) * 6


@pytest.mark.parametrize(
    ("field", "prompt", "fields"),
    [
        ("text", (), {"text": "x"}),
        ("text", (1,) * 256, {"text": "x"}),
        ("token_ids", (1, 1000, 2), {}),
        ("min_tokens", (1,) * 250, {"min_tokens": 7}),
        (
            "resume.choices[0].token_ids",
            (1,) * 250,
            {"resume": pb.Resume(choices=[pb.Resume.Choice(token_ids=[1] * 7)])},
        ),
    ],
)
def test_what_only_the_tokenised_prompt_shows_is_refused_by_name(field, prompt, fields):
    with pytest.raises(InvalidRequestError) as caught:
        specs(prompt, **fields)
    assert caught.value.field == field
