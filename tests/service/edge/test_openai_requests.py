"""OpenAI's bodies: what they mean, and what is refused with which field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from headstart.edge.limits import Limits
from headstart.edge.openai_requests import chat_request, completion_requests, openai_param, parse_chat, parse_completion
from headstart.edge.openai_sizes import MAX_PROMPTS
from headstart.errors import InvalidRequestError
from hypothesis import given
from hypothesis import strategies as st

_LIMITS = Limits(model="tiny", max_len=256, vocab_size=1000, max_token_bytes=8)
_MESSAGES = [{"role": "user", "content": "hello"}]


def _chat(**fields: Any) -> dict[str, Any]:
    raw = json.dumps({"messages": _MESSAGES, **fields}).encode()
    return MessageToDict(chat_request(parse_chat(raw, _LIMITS), "id"), preserving_proto_field_name=True)


def _completions(**fields: Any) -> list[dict[str, Any]]:
    raw = json.dumps({"prompt": "hello", **fields}).encode()
    requests = completion_requests(parse_completion(raw, _LIMITS), "id")
    return [MessageToDict(request, preserving_proto_field_name=True) for request in requests]


def _refused_field(parse: Any, **fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        parse(json.dumps(fields).encode(), _LIMITS)
    return refused.value.field


def test_a_plain_chat_sets_nothing_that_was_not_said() -> None:
    assert _chat() == {
        "request_id": "id",
        "chat": {"messages": [{"role": "user", "content": [{"text": "hello"}]}]},
        "sampling": {},
    }


def test_null_means_absent() -> None:
    names = ("temperature", "stop", "n", "seed", "logit_bias", "tools_are_not_here")
    assert _chat(**dict.fromkeys(names[:-1])) == _chat()


def test_every_field_of_the_body_reaches_the_request() -> None:
    request = _completions(
        model="tiny",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        n=2,
        seed=18_446_744_073_709_551_615,
        stop=["a", "b"],
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": -100, "7": 2.5},
        logprobs=3,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        priority=-3,
        cache_salt="tenant",
    )
    assert request == [
        {
            "request_id": "id",
            "model": "tiny",
            "text": "hello",
            "max_tokens": 7,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_strings": ["a", "b"],
            "stop_token_ids": [9],
            "include_stop": True,
            "logprobs": 3,
            "n": 2,
            "priority": -3,
            "cache_salt": "tenant",
            "sampling": {
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": -1,
                "min_p": 0.1,
                "seed": "18446744073709551615",
                "presence_penalty": 1.0,
                "frequency_penalty": -1.0,
                "repetition_penalty": 1.5,
                "logit_bias": {"5": -100.0, "7": 2.5},
            },
        }
    ]


def test_a_completion_writes_16_tokens_unless_it_is_told_and_a_chat_as_many_as_fit() -> None:
    assert _completions()[0]["max_tokens"] == 16
    assert "max_tokens" not in _chat()
    assert _chat(max_tokens=3, max_completion_tokens=5)["max_tokens"] == 5


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("one", [{"text": "one"}]),
        (["one", "two"], [{"text": "one"}, {"text": "two"}]),
        ([1, 2], [{"token_ids": {"ids": [1, 2]}}]),
        ([[1], [2, 3]], [{"token_ids": {"ids": [1]}}, {"token_ids": {"ids": [2, 3]}}]),
    ],
)
def test_a_prompt_comes_in_four_forms(prompt: Any, expected: list[dict[str, Any]]) -> None:
    requests = _completions(prompt=prompt)
    assert [{key: request[key] for key in ("text", "token_ids") if key in request} for request in requests] == expected
    assert len({request["request_id"] for request in requests}) == len(requests)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (None, "prompt"),
        (1, "prompt"),
        ({"a": 1}, "prompt"),
        ([1.0], "prompt"),
        ([1, True], "prompt"),
        ([1, -1], "prompt"),
        ([1 << 32], "prompt"),
        ([1, "a"], "prompt"),
        (["a", [1]], "prompt"),
        ([[1], [1, 2.0]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[[1]]], "prompt[0]"),
    ],
)
def test_a_prompt_of_another_form_is_refused(prompt: Any, field: str) -> None:
    assert _refused_field(parse_completion, prompt=prompt) == field


def test_parts_of_a_message_stay_apart_and_in_order() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = _chat(messages=[{"role": "user", "content": parts}])["chat"]["messages"][0]
    assert message["content"] == [{"text": "a"}, {"text": "b"}]


def test_logprobs_of_a_chat_are_a_switch_and_a_number() -> None:
    assert "logprobs" not in _chat(logprobs=False)
    assert _chat(logprobs=True)["logprobs"] == 0
    assert _chat(logprobs=True, top_logprobs=4)["logprobs"] == 4
    with pytest.raises(InvalidRequestError, match="top_logprobs"):
        _chat(top_logprobs=4)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": []}, "tools"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": []}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": "hello"}, "messages"),
        ({"temperature": "0.5"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1 << 32}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"store": True}, "store"),
        ({"temprature": 0.5}, "temprature"),
    ],
)
def test_what_is_not_supported_or_has_the_wrong_type_is_refused_by_its_place(
    fields: dict[str, Any], field: str
) -> None:
    assert _refused_field(parse_chat, **{"messages": _MESSAGES, **fields}).startswith(field)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="body: "):
        parse_chat(raw, _LIMITS)


def test_a_lone_surrogate_is_refused_like_any_other_broken_text() -> None:
    with pytest.raises(InvalidRequestError):
        parse_chat(b'{"messages": [{"role": "user", "content": "\\ud800"}]}', _LIMITS)


def test_the_number_of_prompts_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="prompt: 0 prompts"):
        _completions(prompt=[])
    with pytest.raises(InvalidRequestError, match="prompt: 129 prompts"):
        _completions(prompt=["a"] * (MAX_PROMPTS + 1))


@pytest.mark.parametrize("key", ["", "a", "-1", "1.0", "4294967296", "٣", "9" * 5000])
def test_a_bias_is_of_a_token_id(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        _completions(logit_bias={key: 1.0})


def test_best_of_is_refused_unless_it_says_nothing_new() -> None:
    assert _completions(best_of=2, n=2)[0]["n"] == 2
    assert _refused_field(parse_completion, prompt="a", best_of=3) == "best_of"


def test_a_refusal_never_repeats_what_was_sent() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_chat(json.dumps({"messages": [{"role": "user", "content": {"canary": 1}}]}).encode(), _LIMITS)
    assert "canary" not in str(refused.value).partition(": ")[2]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("sampling.top_p", "top_p"),
        ("stop_strings", "stop"),
        ("token_ids", "prompt"),
        ("chat.messages[3].role", "messages[3].role"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_fields_of_the_contract_are_named_as_openai_names_them(field: str, param: str) -> None:
    assert openai_param(field) == param


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    ["model", "prompt", "max_tokens", "temperature", "n", "seed", "stop", "logit_bias", "top_k", "stop_token_ids"]
)


@given(st.dictionaries(_FIELDS, _JSON, max_size=5))
def test_any_body_is_a_request_or_a_refusal(fields: dict[str, Any]) -> None:
    raw = json.dumps({"prompt": "a"} | fields).encode()
    try:
        requests = completion_requests(parse_completion(raw, _LIMITS), "id")
    except InvalidRequestError:
        return
    assert all(request.WhichOneof("prompt") for request in requests)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"prompt": "a", ' + b", ".join(b'"k%d": 1' % key for key in range(1001)) + b"}",
        b'{"prompt": "a", "metadata": {' + b", ".join(b'"k%d": 1' % key for key in range(1001)) + b"}}",
    ],
)
def test_an_object_of_very_many_keys_is_refused_as_a_whole(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="body: an object has more than 1000 keys"):
        parse_completion(raw, _LIMITS)
