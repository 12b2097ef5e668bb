"""From a checked request and its prompt's ids to the specs that an engine runs, one per choice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from headstart.contract.proto import inference_pb2
from headstart.contract.request import GenerateSpec, SamplingParams
from headstart.edge.limits import Limits
from headstart.edge.validation import check_prompt
from headstart.errors import InvalidRequestError

_SEED_BITS = 63


def build_specs(
    request: inference_pb2.GenerateRequest,
    prompt_token_ids: Sequence[int],
    *,
    limits: Limits,
    deadline_s: float | None = None,
    trace_parent: str = "",
) -> list[GenerateSpec]:
    """The specs of a request that `check_generate` let pass, by choice index.

    `deadline_s` is on the monotonic clock. Choice 0 keeps the request's id and is the only one that reports on
    the prompt. A missing id or seed is drawn here. Raises InvalidRequestError when the prompt is empty or leaves no
    room.
    """
    prompt = tuple(prompt_token_ids)
    check_prompt(request.WhichOneof("prompt") or "prompt", prompt, limits)
    room = limits.max_len - len(prompt)
    max_tokens = min(request.max_tokens, room) if request.HasField("max_tokens") else room
    if request.min_tokens > max_tokens:
        raise InvalidRequestError("min_tokens", f"{request.min_tokens} tokens; the prompt leaves room for {room}")
    request_id = request.request_id or secrets.token_hex(12)
    sampling = _sampling(request.sampling, limits)
    return [
        GenerateSpec(
            request_id=choice_request_id(request_id, index),
            choice_index=index,
            prompt_token_ids=prompt,
            resume_token_ids=_resume(request, index, max_tokens),
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            sampling=sampling,
            ignore_eos=request.ignore_eos,
            stop_strings=tuple(request.stop_strings),
            stop_token_ids=frozenset(request.stop_token_ids),
            include_stop=request.include_stop,
            logprobs=request.logprobs if request.HasField("logprobs") else None,
            prompt_logprobs=_prompt_logprobs(request, index),
            priority=request.priority,
            cache_salt=request.cache_salt,
            deadline_s=deadline_s,
            trace_parent=trace_parent,
        )
        for index in range(max(1, request.n))
    ]


def choice_request_id(request_id: str, index: int) -> str:
    """The id of one choice in the engine. The first has the caller's own, which never holds a '#'."""
    return request_id if index == 0 else f"{request_id}#{index}"


def caller_request_id(request_id: str) -> str:
    """The caller's own id of the request whose choice has this id in the engine."""
    return request_id.partition("#")[0]


def is_first_choice(request_id: str) -> bool:
    """Whether an engine's id is one that a caller knows."""
    return "#" not in request_id


def _sampling(sampling: inference_pb2.Sampling, limits: Limits) -> SamplingParams:
    top_k = sampling.top_k if 0 < sampling.top_k < limits.vocab_size else 0
    top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
    if top_p == 0.0:
        top_k, top_p = 1, 1.0
    return SamplingParams(
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_k=top_k,
        top_p=top_p,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(_SEED_BITS),
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
    )


def _resume(request: inference_pb2.GenerateRequest, index: int, max_tokens: int) -> tuple[int, ...]:
    if not request.HasField("resume"):
        return ()
    emitted = tuple(request.resume.choices[index].token_ids)
    if len(emitted) > max_tokens:
        raise InvalidRequestError(
            f"resume.choices[{index}].token_ids", f"{len(emitted)} tokens; only {max_tokens} fit after the prompt"
        )
    return emitted


def _prompt_logprobs(request: inference_pb2.GenerateRequest, index: int) -> int | None:
    if index == 0 and request.HasField("prompt_logprobs"):
        return request.prompt_logprobs
    return None
