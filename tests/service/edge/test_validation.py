import math

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2
from headstart.edge.limits import Limits
from headstart.edge.validation import check_generate, check_lookup, check_prompt, check_tokenize, unknown_model
from headstart.errors import InvalidRequestError, NotFoundError

LIMITS = Limits(model="tiny", max_len=256, vocab_size=1000, max_token_bytes=8)


def request(**fields):
    if not {"text", "token_ids", "chat"} & fields.keys():
        fields["token_ids"] = pb.TokenIds(ids=[1, 2, 3])
    return pb.GenerateRequest(**fields)


def sampled(**fields):
    return request(sampling=pb.Sampling(**fields))


def message(role="user", *texts):
    return pb.Message(role=role, content=[pb.ContentPart(text=text) for text in texts])


def check(message_, limits):
    """As a front does whose prompt needs no tokenizer."""
    check_generate(message_, limits)
    check_prompt("token_ids", list(message_.token_ids.ids), limits)


def refused_field(message_, limits=LIMITS):
    with pytest.raises(InvalidRequestError) as caught:
        check(message_, limits)
    return caught.value.field


ACCEPTED = {
    "token ids": request(),
    "text": request(text="hi"),
    "a chat of several parts": request(chat=pb.Chat(messages=[message("user", "a", "b")])),
    "an empty part": request(chat=pb.Chat(messages=[message("user", "")])),
    "the longest prompt": request(token_ids=pb.TokenIds(ids=[1] * 255)),
    "the largest id": request(token_ids=pb.TokenIds(ids=[999])),
    "this model by name": request(model="tiny"),
    "every bound at its edge": request(
        n=8,
        logprobs=20,
        prompt_logprobs=20,
        max_tokens=1,
        min_tokens=1,
        stop_strings=["x" * 1024] * 16,
        stop_token_ids=[999] * 64,
        request_id="!~" * 64,
        cache_salt="s" * 256,
        priority=-(2**31),
    ),
    "max_tokens beyond the context": request(max_tokens=2**32 - 1),
    "greedy": sampled(temperature=0.0, top_p=0.0, min_p=1.0, top_k=-1),
    "hot": sampled(temperature=10.0, top_p=1.0, min_p=0.0, top_k=2**31 - 1),
    "penalties at their edges": sampled(presence_penalty=-2, frequency_penalty=2, repetition_penalty=10),
    "the smallest repetition penalty": sampled(repetition_penalty=0.01),
    "300 biases": sampled(logit_bias=dict.fromkeys(range(300), -100.0)),
    "resume": request(max_tokens=4, resume=pb.Resume(choices=[pb.Resume.Choice(token_ids=[1, 2, 3])])),
    "a resume that is done": request(max_tokens=2, resume=pb.Resume(choices=[pb.Resume.Choice(token_ids=[1, 2])])),
    "resume from nothing": request(max_tokens=1, resume=pb.Resume(choices=[pb.Resume.Choice()])),
}

REFUSED = {
    "no prompt": ("prompt", pb.GenerateRequest()),
    "empty text": ("text", request(text="")),
    "no token ids": ("token_ids", request(token_ids=pb.TokenIds())),
    "no messages": ("chat.messages", request(chat=pb.Chat())),
    "an id outside the vocabulary": ("token_ids", request(token_ids=pb.TokenIds(ids=[1, 1000, 2]))),
    "a prompt that leaves no room": ("token_ids", request(token_ids=pb.TokenIds(ids=[1] * 256))),
    "a text that cannot fit": ("text", request(text="x" * (256 * 8 + 1))),
    "a text of wide characters that cannot fit": ("text", request(text="\U0001f336" * 600)),
    "a chat that cannot fit": ("chat", request(chat=pb.Chat(messages=[message("user", "x" * 1500)] * 2))),
    "tools that cannot fit": (
        "chat",
        request(chat=pb.Chat(messages=[message("user", "x")], tools_json=['"' + "x" * 3000 + '"'])),
    ),
    "too many messages": ("chat.messages", request(chat=pb.Chat(messages=[message("user", "x")] * 1025))),
    "too many parts": (
        "chat.messages.content",
        request(chat=pb.Chat(messages=[message("user", *[""] * 2100)] * 2)),
    ),
    "too many tools": (
        "chat.tools_json",
        request(chat=pb.Chat(messages=[message("user", "x")], tools_json=["{}"] * 129)),
    ),
    "no content": ("chat.messages[1].content", request(chat=pb.Chat(messages=[message("user", "a"), message()]))),
    "a part that is no text": (
        "chat.messages[0].content[1]",
        request(chat=pb.Chat(messages=[pb.Message(role="user", content=[pb.ContentPart(text="a"), pb.ContentPart()])])),
    ),
    "no role": ("chat.messages[0].role", request(chat=pb.Chat(messages=[message("", "a")]))),
    "both chat flags": (
        "chat.add_generation_prompt",
        request(chat=pb.Chat(messages=[message("user", "x")], add_generation_prompt=True, continue_final_message=True)),
    ),
    "max_tokens 0": ("max_tokens", request(max_tokens=0)),
    "min above max": ("min_tokens", request(min_tokens=5, max_tokens=4)),
    "min beyond the context": ("min_tokens", request(min_tokens=256)),
    "n above the cap": ("n", request(n=9)),
    "21 logprobs": ("logprobs", request(logprobs=21)),
    "logprobs of the whole vocabulary": ("logprobs", request(logprobs=2**32 - 1)),
    "21 prompt logprobs": ("prompt_logprobs", request(prompt_logprobs=21)),
    "an empty stop string": ("stop_strings", request(stop_strings=["a", ""])),
    "17 stop strings": ("stop_strings", request(stop_strings=["a"] * 17)),
    "a long stop string": ("stop_strings", request(stop_strings=["a" * 1025])),
    "65 stop ids": ("stop_token_ids", request(stop_token_ids=[1] * 65)),
    "a stop id outside the vocabulary": ("stop_token_ids", request(stop_token_ids=[1000])),
    "a long request id": ("request_id", request(request_id="r" * 129)),
    "a request id with a space": ("request_id", request(request_id="a b")),
    "a request id with a line end": ("request_id", request(request_id="a\n")),
    "a request id with a NUL": ("request_id", request(request_id="a\0")),
    "a request id with our separator": ("request_id", request(request_id="a#1")),
    "a request id of other letters": ("request_id", request(request_id="é")),
    "a long salt": ("cache_salt", request(cache_salt="é" * 129)),
    "temperature NaN": ("sampling.temperature", sampled(temperature=math.nan)),
    "temperature below 0": ("sampling.temperature", sampled(temperature=-0.1)),
    "temperature infinite": ("sampling.temperature", sampled(temperature=math.inf)),
    "top_p NaN": ("sampling.top_p", sampled(top_p=math.nan)),
    "top_p above 1": ("sampling.top_p", sampled(top_p=1.5)),
    "min_p NaN": ("sampling.min_p", sampled(min_p=math.nan)),
    "min_p below 0": ("sampling.min_p", sampled(min_p=-1e-9)),
    "top_k -2": ("sampling.top_k", sampled(top_k=-2)),
    "presence NaN": ("sampling.presence_penalty", sampled(presence_penalty=math.nan)),
    "frequency above 2": ("sampling.frequency_penalty", sampled(frequency_penalty=2.1)),
    "repetition 0": ("sampling.repetition_penalty", sampled(repetition_penalty=0.0)),
    "repetition that overflows": ("sampling.repetition_penalty", sampled(repetition_penalty=1e-308)),
    "repetition below its bound": ("sampling.repetition_penalty", sampled(repetition_penalty=0.0099)),
    "repetition NaN": ("sampling.repetition_penalty", sampled(repetition_penalty=math.nan)),
    "301 biases": ("sampling.logit_bias", sampled(logit_bias=dict.fromkeys(range(301), 1.0))),
    "a bias NaN": ("sampling.logit_bias", sampled(logit_bias={1: math.nan})),
    "a bias above 100": ("sampling.logit_bias", sampled(logit_bias={1: 101.0})),
    "a bias outside the vocabulary": ("sampling.logit_bias", sampled(logit_bias={1000: 1.0})),
    "one resume list for two choices": ("resume.choices", request(n=2, resume=pb.Resume(choices=[pb.Resume.Choice()]))),
    "a resume of more than was asked for": (
        "resume.choices[0].token_ids",
        request(max_tokens=2, resume=pb.Resume(choices=[pb.Resume.Choice(token_ids=[1, 2, 3])])),
    ),
    "a resume outside the vocabulary": (
        "resume.choices[1].token_ids",
        request(n=2, resume=pb.Resume(choices=[pb.Resume.Choice(), pb.Resume.Choice(token_ids=[1000])])),
    ),
    "a resume beyond the context": (
        "resume.choices[0].token_ids",
        request(resume=pb.Resume(choices=[pb.Resume.Choice(token_ids=[1] * 256)])),
    ),
}


@pytest.mark.parametrize("accepted", ACCEPTED.values(), ids=ACCEPTED)
def test_what_can_be_served_passes(accepted):
    check_generate(accepted, LIMITS)


@pytest.mark.parametrize(("field", "bad"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_by_the_name_of_its_field(field, bad):
    assert refused_field(bad) == field


@pytest.mark.parametrize(
    "name", ["other", "../../etc/passwd", "/etc/passwd", "http://169.254.169.254/", "a" * 10_000, "%2e%2e"]
)
def test_an_unknown_adapter_is_not_found_and_not_repeated_in_the_answer(name):
    with pytest.raises(NotFoundError) as caught:
        check_generate(request(lora=name), LIMITS)
    assert name not in str(caught.value)


@pytest.mark.parametrize("name", ["other", "../../etc/passwd", "a\nb", "a" * 10_000])
def test_an_unknown_model_is_not_found_and_named_in_short_beside_what_is_served(name):
    with pytest.raises(NotFoundError) as caught:
        check_generate(request(model=name), LIMITS)
    told = str(caught.value)
    assert told.startswith(f"model: {name[:80]!r}"[:-1])
    assert told.endswith("is not served here; served: 'tiny'")
    assert len(told) < 200
    assert "\n" not in told


def test_of_many_models_that_are_served_a_few_are_named():
    told = str(unknown_model("x", {f"model-{number}" for number in range(5000)}))
    assert told.endswith("'model-1001', 'model-1002', 'model-1003' and others")


def test_a_priority_is_refused_where_it_would_be_ignored():
    limits = Limits(model="tiny", max_len=256, vocab_size=1000, has_priorities=False)
    assert refused_field(request(priority=1), limits) == "priority"
    check_generate(request(priority=0), limits)


def with_unknown_field(message_, raw=b"\xf8\x07\x01"):  # field 127, varint 1
    message_.MergeFromString(raw)
    return message_


def test_unknown_fields_are_refused_wherever_they_stand():
    chat = pb.Chat(messages=[message("user", "a"), with_unknown_field(message("user", "b"))])
    assert refused_field(with_unknown_field(request())) == "#127"
    assert refused_field(request(sampling=with_unknown_field(pb.Sampling()))) == "sampling.#127"
    assert refused_field(request(chat=chat)) == "chat.messages[1].#127"


@pytest.mark.parametrize(
    ("max_len", "max_token_bytes", "most"),
    [(256, 8, 256 * 8), (256, 400, 64 * 1024), (8192, 400, 8192 * 16), (8192, 9, 8192 * 9), (1 << 20, 400, 1 << 22)],
)
def test_the_length_of_a_text_is_bounded_by_what_fits_by_what_is_plausible_and_by_the_setting(
    max_len, max_token_bytes, most
):
    limits = Limits(model="tiny", max_len=max_len, vocab_size=1000, max_token_bytes=max_token_bytes)
    check_generate(request(text="x" * most), limits)
    assert refused_field(request(text="x" * (most + 1)), limits) == "text"


def test_a_huge_prompt_is_refused_by_its_size_before_its_contents_are_looked_at():
    five_megabytes = "word " * 1_000_000
    # Each also has a fault further in, which would be named if it were reached.
    bad_id, no_content = [1] * 1_000_000 + [1000], [pb.Message()] * 50_000
    assert refused_field(request(text=five_megabytes, n=99)) == "text"
    assert refused_field(request(chat=pb.Chat(messages=[message("user", five_megabytes)]), n=99)) == "chat"
    assert refused_field(request(chat=pb.Chat(messages=no_content))) == "chat.messages"
    with pytest.raises(InvalidRequestError, match="1000001 tokens"):
        check_generate(request(token_ids=pb.TokenIds(ids=bad_id)), LIMITS)


def test_tokenize_checks_its_prompt_and_model_alike():
    check_tokenize(pb.TokenizeRequest(text="hi"), LIMITS)
    for field, bad in [
        ("prompt", pb.TokenizeRequest()),
        ("text", pb.TokenizeRequest(text="x" * 5000)),
        ("chat.messages", pb.TokenizeRequest(chat=pb.Chat())),
        ("#127", with_unknown_field(pb.TokenizeRequest(text="hi"))),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            check_tokenize(bad, LIMITS)
        assert caught.value.field == field
    with pytest.raises(NotFoundError):
        check_tokenize(pb.TokenizeRequest(text="hi", model="other"), LIMITS)


def test_a_lookup_takes_either_ids_in_the_vocabulary_or_whole_hashes():
    lookup = prefix_cache_pb2.LookupRequest
    check_lookup(lookup(token_ids=[1, 2]), LIMITS)
    check_lookup(lookup(hashes=[b"h" * 32]), LIMITS)
    for field, bad in [
        ("token_ids", lookup()),
        ("token_ids", lookup(token_ids=[1], hashes=[b"h" * 32])),
        ("token_ids", lookup(token_ids=[1000])),
        ("token_ids", lookup(token_ids=[1] * 256)),
        ("hashes", lookup(hashes=[b"h" * 8])),
        ("hashes", lookup(hashes=[b"h" * 32] * 257)),
        ("cache_salt", lookup(token_ids=[1], cache_salt="s" * 257)),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            check_lookup(bad, LIMITS)
        assert caught.value.field == field
    with pytest.raises(NotFoundError):
        check_lookup(lookup(token_ids=[1], lora="a"), LIMITS)
