"""OpenAI's request bodies: their fields, and the requests of the contract that they mean.

A field that would change the answer and is not supported is refused, never ignored; null means absent. Ranges are
checked by whoever runs the request, in one place for every front. Holds no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PlainValidator, ValidationError
from pydantic_core import from_json

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.limits import Limits
from headstart.edge.openai_sizes import MAX_PROMPTS, check_counts, check_structure
from headstart.errors import HeadstartError, InvalidRequestError

_DEFAULT_COMPLETION_TOKENS = 16
"""What the completions endpoint generates when it is not told; a chat goes on as long as fits."""

_MAX_UINT32 = 0xFFFF_FFFF
_Uint32 = Annotated[int, Field(ge=0, le=_MAX_UINT32)]
_Int32 = Annotated[int, Field(ge=-0x8000_0000, le=0x7FFF_FFFF)]
_Uint64 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF_FFFF_FFFF)]
# Lists stop at their first fault: a body of a million faults must not cost a million reports.
_TokenIds = Annotated[list[_Uint32], Field(fail_fast=True)]
_Texts = Annotated[list[str], Field(fail_fast=True)]
_Prompt = str | list[int] | list[str] | list[list[int]]
_TYPES = frozenset({"str", "int"})


class _Body(BaseModel, frozen=True, extra="forbid", strict=True):
    """JSON types are taken as they are: no number in a string, no 1 for true."""


_BodyT = TypeVar("_BodyT", bound=_Body)


class StreamOptions(_Body, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _TextFormat(_Body, frozen=True):
    type: Literal["text"]


class GenerationBody(_Body, frozen=True):
    """The fields that both endpoints share; from `top_k` on they are those that vLLM adds."""

    model: str | None = None
    max_tokens: _Uint32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=0xFFFF_FFFF)] | None = None
    seed: _Uint64 | None = None
    stop: str | _Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    # What follows in this block names the account or the bill and changes no answer.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    top_k: _Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: _Uint32 | None = None
    ignore_eos: bool | None = None
    stop_token_ids: _TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    priority: _Int32 | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None

    @property
    def num_choices(self) -> int:
        """Of each prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class TextPart(_Body, frozen=True):
    type: Literal["text"]
    text: str


class ChatBodyMessage(_Body, frozen=True):
    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    refusal: None = None
    name: None = None
    tool_calls: None = None


class ChatBody(GenerationBody, frozen=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatBodyMessage], Field(fail_fast=True)]
    max_completion_tokens: _Uint32 | None = None
    logprobs: bool | None = None
    top_logprobs: _Uint32 | None = None
    response_format: _TextFormat | None = None
    tool_choice: Literal["none"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def _checked_prompt(prompt: object) -> object:
    """As strict as the other fields: pydantic would take ten times as long for the ids, and hold up all else meanwhile.

    Raises InvalidRequestError.
    """
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        raise InvalidRequestError("prompt", "must be a text, token ids, or a list of texts or of token ids")
    if prompt and isinstance(prompt[0], list):
        for index, token_ids in enumerate(prompt):
            _check_all(f"prompt[{index}]", token_ids, int)
    else:
        _check_all("prompt", prompt, type(prompt[0]) if prompt and isinstance(prompt[0], str) else int)
    return prompt


def _check_all(field: str, items: object, kind: type) -> None:
    if not isinstance(items, list) or set(map(type, items)) - {kind}:
        raise InvalidRequestError(field, f"must hold nothing but {'texts' if kind is str else 'token ids'}")
    if kind is int and items and not 0 <= min(items) <= max(items) <= _MAX_UINT32:
        raise InvalidRequestError(field, "each token id must be a number of 32 bits without a sign")


class CompletionBody(GenerationBody, frozen=True):
    """`POST /v1/completions`."""

    prompt: Annotated[_Prompt, PlainValidator(_checked_prompt)]
    logprobs: _Uint32 | None = None
    best_of: _Uint32 | None = None
    echo: Literal[False] | None = None
    suffix: None = None


def parse_chat(raw: bytes, limits: Limits) -> ChatBody:
    """Raises InvalidRequestError that names the field."""
    return _parse(ChatBody, raw, limits)


def parse_completion(raw: bytes, limits: Limits) -> CompletionBody:
    """Raises InvalidRequestError that names the field."""
    body = _parse(CompletionBody, raw, limits)
    if body.best_of is not None and body.best_of != body.num_choices:
        raise InvalidRequestError("best_of", "not supported; leave it out, or set it to n")
    return body


def chat_request(body: ChatBody, request_id: str) -> pb.GenerateRequest:
    """The request that a chat means. Raises InvalidRequestError."""
    request = _shared(body, request_id)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens is not None:
        request.max_tokens = max_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs", "needs logprobs to be true")
    if body.logprobs:
        request.logprobs = body.top_logprobs or 0
    chat = request.chat
    chat.SetInParent()
    for message in body.messages:
        parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
        chat.messages.add(role=message.role, content=[pb.ContentPart(text=part) for part in parts])
    if body.add_generation_prompt is not None:
        chat.add_generation_prompt = body.add_generation_prompt
    chat.continue_final_message = bool(body.continue_final_message)
    return request


def completion_requests(body: CompletionBody, request_id: str) -> list[pb.GenerateRequest]:
    """One request a prompt. Raises InvalidRequestError."""
    prompts = _prompts(body.prompt)
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InvalidRequestError("prompt", f"{len(prompts)} prompts; send 1 to {MAX_PROMPTS}")
    requests = []
    for index, prompt in enumerate(prompts):
        request = _shared(body, request_id if index == 0 else f"{request_id}-{index}")
        request.max_tokens = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        if body.logprobs is not None:
            request.logprobs = body.logprobs
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.SetInParent()
            request.token_ids.ids.extend(prompt)
        requests.append(request)
    return requests


def openai_param(field: str) -> str:
    """A field of the contract, as OpenAI spells it."""
    renamed = {
        "stop_strings": "stop",
        "text": "prompt",
        "token_ids": "prompt",
        "include_stop": "include_stop_str_in_output",
    }
    name = field.removeprefix("sampling.").removeprefix("chat.")
    return renamed.get(name, name)


def _parse(model: type[_BodyT], raw: bytes, limits: Limits) -> _BodyT:
    check_structure(raw, limits)
    try:
        content = from_json(raw, cache_strings=False)
    except ValueError:
        raise InvalidRequestError("body", "not JSON") from None
    if not isinstance(content, dict):
        raise InvalidRequestError("body", "not a JSON object")
    check_counts(content, limits)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> HeadstartError:
    """One fault, by the place where it stands. What was sent is not repeated."""
    # Of the alternatives of a union the one that got furthest is the one that was meant.
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    detail = max(faults, key=lambda fault: len(fault["loc"]))
    # Pydantic puts the alternative of a union that it tried, such as "list[TextPart]", among the names.
    place = [part for part in detail["loc"] if isinstance(part, int) or (part.isidentifier() and part not in _TYPES)]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if detail["type"] in ("extra_forbidden", "none_required"):
        return InvalidRequestError(field, "not supported here; leave it out")
    return InvalidRequestError(field, detail["msg"])


def _shared(body: GenerationBody, request_id: str) -> pb.GenerateRequest:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    return pb.GenerateRequest(
        request_id=request_id,
        model=body.model or "",
        sampling=_sampling(body),
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop_strings=stop or (),
        stop_token_ids=body.stop_token_ids or (),
        include_stop=bool(body.include_stop_str_in_output),
        n=body.n or 0,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def _sampling(body: GenerationBody) -> pb.Sampling:
    """Absent fields stay absent: their defaults are the contract's."""
    given: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "seed": body.seed,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    return pb.Sampling(
        **{name: value for name, value in given.items() if value is not None}, logit_bias=_logit_bias(body)
    )


def _logit_bias(body: GenerationBody) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= 0xFFFF_FFFF):
            raise InvalidRequestError("logit_bias", "each key must be a token id")
        bias[int(key)] = value
    return bias


def _prompts(prompt: _Prompt) -> Sequence[str | list[int]]:
    """A list of numbers is one prompt, any other list is several."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    return [token_ids] if token_ids else [item for item in prompt if not isinstance(item, int)]
