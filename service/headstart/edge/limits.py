"""The bounds of what a request may ask for. One frozen value, shared by every front and by the operator."""

from __future__ import annotations

from dataclasses import dataclass

_BYTES_PER_TOKEN = 16
"""Far more than any text has on average, and far less than a longest token."""

_ALWAYS_READ_BYTES = 64 * 1024

MAX_CACHE_SALT_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound that a request is checked against. `model`, `max_len` and `vocab_size` come from the model.

    `max_len` counts prompt and output tokens and is already capped so that one such request fits the pool.
    `max_token_bytes` is the longest token's length: a text longer than `max_len` of them cannot fit, which is known
    before it is tokenised. As the longest token says little of a text, one of more than 16 bytes a token and 64 KiB is
    not read either. `has_priorities` is false under a policy that would ignore a priority.
    """

    model: str
    max_len: int
    vocab_size: int
    max_token_bytes: int = 256
    max_prompt_bytes: int = 4 * 1024 * 1024
    max_n: int = 8
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_stop_string_bytes: int = 1024
    max_stop_token_ids: int = 64
    max_logit_bias: int = 300
    max_request_id_bytes: int = 128
    max_cache_salt_bytes: int = MAX_CACHE_SALT_BYTES
    max_messages: int = 1024
    max_content_parts: int = 4096
    max_tools: int = 128
    has_priorities: bool = True

    @property
    def max_text_bytes(self) -> int:
        """More than this cannot fit, is no text that could, or may not be sent."""
        plausible = max(_ALWAYS_READ_BYTES, self.max_len * _BYTES_PER_TOKEN)
        return min(self.max_prompt_bytes, self.max_len * self.max_token_bytes, plausible)
