"""How large a body of OpenAI's may be, and how much may be in it, before anybody looks at its fields.

JSON is parsed and its fields are checked in one go each, and every stream waits meanwhile: some 15 ms a MiB for
numbers, 100 for empty lists, and as much again for pydantic. So what no request that could be served has is refused
first: too many bytes before they are read, too many values before they are parsed, too long a list before its items are
looked at.
Holds no state.
"""

from __future__ import annotations

from typing import Any

from headstart.edge.limits import Limits
from headstart.edge.validation import check_prompt_length
from headstart.errors import InvalidRequestError

MAX_PROMPTS = 128
_MAX_KEYS = 1000
_LEAST_BODY_BYTES = 1 << 20
_LEAST_IDS = 1 << 18
_ESCAPED_BYTES = 6  # a character of one byte is at most \u001f
_ID_BYTES = 12  # ten digits, a comma and a space
_PIECE_BYTES = 64  # of names and brackets around a message or a part of one
_REST_BYTES = 64 << 10  # of all fields that are not lists
_STRUCTURE_PER_PIECE = 8  # brackets; twice as many texts


def max_body_bytes(limits: Limits) -> int:
    """What one prompt of any form may need, its stops included. Several prompts of one body share it."""
    prompt = max(_ESCAPED_BYTES * limits.max_text_bytes, _ID_BYTES * limits.max_len)
    stops = _ESCAPED_BYTES * limits.max_stop_strings * limits.max_stop_string_bytes
    return max(_LEAST_BODY_BYTES, prompt + stops + _PIECE_BYTES * _pieces(limits) + _REST_BYTES)


def check_structure(raw: bytes, limits: Limits) -> None:
    """Count texts, lists and values without making them: some 3 ms a MiB.

    Raises InvalidRequestError for many more than a request could have.
    """
    max_nested = _STRUCTURE_PER_PIECE * _pieces(limits)
    max_texts = 2 * max_nested + limits.max_stop_strings
    max_values = max_texts + max(_LEAST_IDS, 4 * limits.max_len)
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * max_texts:
        raise InvalidRequestError("body", f"more than {max_texts} texts")
    outside = b"".join(unescaped.split(b'"')[::2])
    if outside.count(b"[") + outside.count(b"{") > max_nested:
        raise InvalidRequestError("body", f"more than {max_nested} objects and lists")
    if outside.count(b",") > max_values:
        raise InvalidRequestError("body", f"more than {max_values} values; send the prompts in several requests")


def check_counts(content: dict[str, Any], limits: Limits) -> None:
    """Raises InvalidRequestError that names the list or object which is too long."""
    _check_prompt(content.get("prompt"), limits)
    _check_messages(content.get("messages"), limits)
    _check_count("stop", content.get("stop"), limits.max_stop_strings)
    _check_count("stop_token_ids", content.get("stop_token_ids"), limits.max_stop_token_ids)
    _check_count("logit_bias", content.get("logit_bias"), limits.max_logit_bias)
    # What is wrong with each of very many keys would take seconds to say.
    unseen: list[Any] = [{**content, "prompt": None}]
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            if len(value) > _MAX_KEYS:
                raise InvalidRequestError("body", f"an object has more than {_MAX_KEYS} keys")
            unseen.extend(value.values())
        elif isinstance(value, list):
            unseen.extend(item for item in value if isinstance(item, dict | list))


def _pieces(limits: Limits) -> int:
    return limits.max_messages + limits.max_content_parts


def _check_prompt(prompt: object, limits: Limits) -> None:
    if not isinstance(prompt, list) or not prompt:
        return
    if isinstance(prompt[0], int):
        check_prompt_length("prompt", len(prompt), limits)
        return
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError("prompt", f"{len(prompt)} prompts; send 1 to {MAX_PROMPTS}")
    for index, token_ids in enumerate(prompt):
        if isinstance(token_ids, list):
            check_prompt_length(f"prompt[{index}]", len(token_ids), limits)


def _check_messages(messages: object, limits: Limits) -> None:
    _check_count("messages", messages, limits.max_messages)
    num_parts = 0
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list):
            num_parts += len(parts)
            if num_parts > limits.max_content_parts:
                raise InvalidRequestError(
                    f"messages[{index}].content", f"more than {limits.max_content_parts} parts up to here"
                )


def _check_count(field: str, items: object, most: int) -> None:
    if isinstance(items, list | dict) and len(items) > most:
        raise InvalidRequestError(field, f"{len(items)} entries; at most {most}")
