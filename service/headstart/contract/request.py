"""What a request is, for every layer and for the operator: frozen values, already validated.

`edge.specs` builds them from the wire; nobody changes them afterwards. A request for `n` choices becomes `n` specs that
differ in `request_id` and `choice_index` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    The order is fixed: bias, penalties, `min_tokens` mask, temperature, top-k, top-p, min-p, draw. `temperature == 0`
    is greedy. `top_k == 0`, `top_p == 1` and `min_p == 0` mean "off". `seed` is never missing here: whoever
    sees a request first draws one, so that it can be continued elsewhere with the same random numbers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSpec:
    """One choice of one request.

    `request_id` is made by the server and unique in the process. `prompt_token_ids` is what the client sent,
    `resume_token_ids` what earlier attempts of it already delivered: counted as completion, never sent again.
    `deadline_s` is on this process's monotonic clock; None waits for ever. `logprobs` is the number of alternatives
    a token is reported with, None for no logprobs at all; likewise `prompt_logprobs`.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    choice_index: int = 0
    resume_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    lora: str = ""
    cache_salt: str = ""
    deadline_s: float | None = None
    trace_parent: str = ""
