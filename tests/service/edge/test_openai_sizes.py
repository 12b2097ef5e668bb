"""How much a body may hold: legal ones at their limits pass, and what is over them is refused before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headstart.edge.limits import Limits
from headstart.edge.openai_requests import parse_chat, parse_completion
from headstart.edge.openai_sizes import MAX_PROMPTS, check_counts, check_structure, max_body_bytes
from headstart.errors import InvalidRequestError

LIMITS = Limits(model="tiny", max_len=256, vocab_size=1000, max_token_bytes=8)
WIDE = Limits(model="wide", max_len=1 << 17, vocab_size=1 << 17, max_token_bytes=400)
NO_JSON = b"!"  # what is refused otherwise was not parsed


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        (LIMITS, 1 << 20),
        (WIDE, 12 << 20),
        (Limits(model="ids", max_len=1 << 20, vocab_size=9, max_token_bytes=1), 12 << 20),
    ],
)
def test_a_body_may_be_as_large_as_the_longest_prompt_in_its_longest_spelling(limits: Limits, least: int) -> None:
    bound = max_body_bytes(limits)
    assert bound >= least
    stops = ["\x01" * limits.max_stop_string_bytes] * limits.max_stop_strings
    text = {"prompt": "\x01" * limits.max_text_bytes, "stop": stops}
    ids = {"prompt": [(1 << 32) - 1] * (limits.max_len - 1), "stop": stops}
    for body in (text, ids):
        assert len(json.dumps(body)) <= bound


def test_what_is_legal_in_every_list_passes_at_its_limits() -> None:
    part = {"type": "text", "text": '"\\'}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"} for _ in range(LIMITS.max_messages - 1)]
    messages.append({"role": "user", "content": [part] * LIMITS.max_content_parts})
    shared = {
        "stop": ["a"] * LIMITS.max_stop_strings,
        "stop_token_ids": [1] * LIMITS.max_stop_token_ids,
        "logit_bias": {str(key): 1.0 for key in range(LIMITS.max_logit_bias)},
        "metadata": {str(key): "a" for key in range(1000)},
    }
    body = parse_chat(json.dumps({"messages": messages, **shared}).encode(), LIMITS)
    assert len(body.messages) == LIMITS.max_messages
    prompts = [[1] * (LIMITS.max_len - 1)] * MAX_PROMPTS
    assert parse_completion(json.dumps({"prompt": prompts, **shared}).encode(), LIMITS).prompt == prompts
    assert parse_completion(json.dumps({"prompt": ["a"] * MAX_PROMPTS}).encode(), LIMITS).prompt == ["a"] * MAX_PROMPTS


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": [1] * LIMITS.max_len}, "prompt"),
        ({"prompt": [[1], [1] * LIMITS.max_len]}, "prompt[1]"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"prompt": [[1]] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"messages": [None] * (LIMITS.max_messages + 1)}, "messages"),
        ({"messages": [{"content": [None] * 3000}, {}, {"content": [None] * 1097}]}, "messages[2].content"),
        ({"stop": [None] * (LIMITS.max_stop_strings + 1)}, "stop"),
        ({"stop_token_ids": [None] * (LIMITS.max_stop_token_ids + 1)}, "stop_token_ids"),
        ({"logit_bias": {str(key): None for key in range(LIMITS.max_logit_bias + 1)}}, "logit_bias"),
    ],
)
def test_a_list_that_is_too_long_is_refused_by_its_name_before_its_items(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_counts(fields, LIMITS)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"user":[' + b"{}," * 50_000, "objects and lists"),
        (b'{"prompt":' + b"[" * 50_000, "objects and lists"),
        (b'{"prompt":[' + b"1," * 400_000, "values"),
        (b'{"stop":[' + b'"a",' * 90_000, "texts"),
    ],
    ids=["objects", "depth", "numbers", "texts"],
)
def test_very_many_values_are_refused_before_they_are_parsed(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"body: more than [0-9]+ {reason}"):
        parse_completion(raw + NO_JSON, LIMITS)


def test_what_stands_in_a_text_is_not_counted() -> None:
    texts = ["[{,]}" * 100_000, '"' * 100_000, "\\" * 100_001, '\\"[{,' * 50_000]
    for text in texts:
        check_structure(json.dumps({"prompt": text, "stop": "[", "user": text}).encode(), LIMITS)
    with pytest.raises(InvalidRequestError, match="objects and lists"):
        check_structure(b'{"user": "\\\\", "prompt": [' + b"{}," * 50_000, LIMITS)
