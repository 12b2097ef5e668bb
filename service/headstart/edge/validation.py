"""Whether a request may be run at all: every check of its fields, in one place and before anything costly.

Checks are positive (`lo <= x <= hi`), so NaN fails them. Counts and byte lengths are checked before contents, so
the cost is bounded by the limits and not by what was sent. Every refusal is an InvalidRequestError that names the
proto field, but for a model or an adapter that is not served: NotFoundError. Knows nothing of tokenizers, schedulers
or pools.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from headstart.contract.prefix import DIGEST_BYTES
from headstart.contract.proto import inference_pb2, prefix_cache_pb2
from headstart.contract.wire import largest_id
from headstart.edge.limits import Limits
from headstart.errors import InvalidRequestError, NotFoundError

_MAX_TEMPERATURE = 10.0
_MAX_PENALTY = 2.0
_MIN_REPETITION_PENALTY, _MAX_REPETITION_PENALTY = 0.01, 10.0
_MAX_BIAS = 100.0
_MAX_SHOWN_CHARS = 80
_MAX_SHOWN_MODELS = 8


def check_generate(request: inference_pb2.GenerateRequest, limits: Limits) -> None:
    """All that can be said of a request before its prompt is read; the rest is `check_prompt`'s.

    Raises InvalidRequestError, and NotFoundError for an unknown model or adapter.
    """
    _check_names(request, limits)
    match request.WhichOneof("prompt"):
        case "token_ids":
            check_prompt_length("token_ids", len(request.token_ids.ids), limits)
        case "text":
            _check_text("text", request.text, limits)
        case "chat":
            _check_chat(request.chat, limits)
        case _:
            raise InvalidRequestError("prompt", "set one of text, token_ids and chat")
    _check_lengths(request, limits)
    _check_stops(request, limits)
    _check_sampling(request.sampling, limits)
    _check_resume(request, limits)
    refuse_unknown_fields(request)


def check_tokenize(request: inference_pb2.TokenizeRequest, limits: Limits) -> None:
    """As `check_generate`, for a prompt that is only tokenised."""
    _check_model(request.model, limits)
    match request.WhichOneof("prompt"):
        case "text":
            _check_text("text", request.text, limits)
        case "chat":
            _check_chat(request.chat, limits)
        case _:
            raise InvalidRequestError("prompt", "set one of text and chat")
    refuse_unknown_fields(request)


def check_question(request: inference_pb2.GetModelRequest | inference_pb2.GetTokenizerRequest, limits: Limits) -> None:
    """As `check_generate`, for a question about the model."""
    _check_model(request.model, limits)
    refuse_unknown_fields(request)


def check_prompt(field: str, token_ids: Sequence[int], limits: Limits) -> None:
    """A prompt needs a token, room for one more after it, and ids of the vocabulary. `field` is what it came in.

    Give it an `array("I")`, or at least a list: to walk the ids within a message takes several times as long.
    """
    check_prompt_length(field, len(token_ids), limits)
    _check_ids(field, token_ids, limits)


def check_prompt_length(field: str, num_tokens: int, limits: Limits) -> None:
    """The part of `check_prompt` that only counts."""
    if num_tokens == 0:
        raise InvalidRequestError(field, "the prompt is empty; send at least one token")
    if num_tokens + 1 > limits.max_len:
        raise InvalidRequestError(
            field,
            f"the prompt has {num_tokens} tokens; at most {limits.max_len - 1} fit, "
            f"because prompt and output share {limits.max_len} tokens",
        )


def check_lookup(request: prefix_cache_pb2.LookupRequest, limits: Limits) -> None:
    """A prompt's ids or the hashes of its leading blocks, not both. Raises as `check_generate`."""
    _check_lora(request.lora)
    check_cache_salt(request.cache_salt, limits.max_cache_salt_bytes)
    if bool(request.token_ids) == bool(request.hashes):
        raise InvalidRequestError("token_ids", "set either token_ids or hashes")
    if request.token_ids:
        check_prompt("token_ids", request.token_ids, limits)
    _check_count("hashes", len(request.hashes), limits.max_len)
    if not all(len(digest) == DIGEST_BYTES for digest in request.hashes):
        raise InvalidRequestError("hashes", f"each must be a whole chain hash of {DIGEST_BYTES} bytes")
    refuse_unknown_fields(request)


def _check_lora(lora: str) -> None:
    """Names are compared, never opened."""
    if lora:
        raise NotFoundError("lora: this pod serves no adapters")


def check_cache_salt(cache_salt: str, max_bytes: int) -> None:
    """Raises InvalidRequestError for a salt that is too long."""
    size = len(cache_salt.encode())
    if size > max_bytes:
        raise InvalidRequestError("cache_salt", f"{size} bytes; at most {max_bytes}")


def _check_model(model: str, limits: Limits) -> None:
    if model and model != limits.model:
        raise unknown_model(model, [limits.model])


def unknown_model(model: str, served: Collection[str]) -> NotFoundError:
    """Names the model that was asked for, and those that are served: of both no more than a trailer can carry."""
    asked = model if len(model) <= _MAX_SHOWN_CHARS else f"{model[:_MAX_SHOWN_CHARS]}..."
    names = ", ".join(repr(name) for name in sorted(served)[:_MAX_SHOWN_MODELS])
    more = " and others" if len(served) > _MAX_SHOWN_MODELS else ""
    return NotFoundError(f"model: {asked!r} is not served here; served: {names}{more}")


def _check_names(request: inference_pb2.GenerateRequest, limits: Limits) -> None:
    _check_model(request.model, limits)
    _check_lora(request.lora)
    request_id = request.request_id
    if len(request_id) > limits.max_request_id_bytes:
        raise InvalidRequestError("request_id", f"longer than {limits.max_request_id_bytes} characters")
    # '#' separates the choice index in the ids that the server makes from this one.
    if not all("!" <= char <= "~" and char != "#" for char in request_id):
        raise InvalidRequestError("request_id", "only visible ASCII characters other than '#' are allowed")
    check_cache_salt(request.cache_salt, limits.max_cache_salt_bytes)
    if request.priority and not limits.has_priorities:
        raise InvalidRequestError("priority", "this pod schedules first come, first served; leave it unset")


def _check_text(field: str, text: str, limits: Limits) -> None:
    if not text:
        raise InvalidRequestError(field, "the prompt is empty")
    _check_text_bytes(field, len(text.encode()), limits)


def _check_text_bytes(field: str, size: int, limits: Limits) -> None:
    if size > limits.max_text_bytes:
        raise InvalidRequestError(
            field,
            f"{size} bytes of text; at most {limits.max_text_bytes} are read, "
            f"because prompt and output share {limits.max_len} tokens",
        )


def _check_chat(chat: inference_pb2.Chat, limits: Limits) -> None:
    _check_count("chat.messages", len(chat.messages), limits.max_messages)
    _check_count("chat.tools_json", len(chat.tools_json), limits.max_tools)
    if not chat.messages:
        raise InvalidRequestError("chat.messages", "empty; send at least one message")
    if chat.continue_final_message and chat.HasField("add_generation_prompt") and chat.add_generation_prompt:
        raise InvalidRequestError("chat.add_generation_prompt", "excludes continue_final_message; set one of them")
    size = sum(len(tool.encode()) for tool in chat.tools_json)
    num_parts = 0
    for index, message in enumerate(chat.messages):
        field = f"chat.messages[{index}]"
        if not message.role:
            raise InvalidRequestError(f"{field}.role", "missing")
        num_parts += len(message.content)
        _check_count("chat.messages.content", num_parts, limits.max_content_parts)
        size += len(message.role.encode()) + _content_bytes(message, field)
    _check_text_bytes("chat", size, limits)


def _content_bytes(message: inference_pb2.Message, field: str) -> int:
    if not message.content:
        raise InvalidRequestError(f"{field}.content", "missing; send one text part, which may be empty")
    for index, part in enumerate(message.content):
        if part.WhichOneof("part") != "text":
            raise InvalidRequestError(f"{field}.content[{index}]", "only text parts are supported")
    return sum(len(part.text.encode()) for part in message.content)


def _check_lengths(request: inference_pb2.GenerateRequest, limits: Limits) -> None:
    if request.HasField("max_tokens"):
        if not request.max_tokens >= 1:
            raise InvalidRequestError("max_tokens", "must be at least 1; leave it unset for as many as fit")
        if request.min_tokens > request.max_tokens:
            raise InvalidRequestError("min_tokens", f"{request.min_tokens} exceeds max_tokens {request.max_tokens}")
    if request.min_tokens >= limits.max_len:
        raise InvalidRequestError("min_tokens", f"must be less than {limits.max_len}, the context length")
    if not 0 <= request.n <= limits.max_n:
        raise InvalidRequestError("n", f"must be at most {limits.max_n}")
    if not 0 <= request.logprobs <= limits.max_logprobs:
        raise InvalidRequestError("logprobs", f"must be at most {limits.max_logprobs}")
    if not 0 <= request.prompt_logprobs <= limits.max_logprobs:
        raise InvalidRequestError("prompt_logprobs", f"must be at most {limits.max_logprobs}")


def _check_stops(request: inference_pb2.GenerateRequest, limits: Limits) -> None:
    _check_count("stop_strings", len(request.stop_strings), limits.max_stop_strings)
    for stop in request.stop_strings:
        if not stop:
            raise InvalidRequestError("stop_strings", "an empty stop string would match at once; leave it out")
        if len(stop.encode()) > limits.max_stop_string_bytes:
            raise InvalidRequestError("stop_strings", f"one is longer than {limits.max_stop_string_bytes} bytes")
    _check_count("stop_token_ids", len(request.stop_token_ids), limits.max_stop_token_ids)
    _check_ids("stop_token_ids", request.stop_token_ids, limits)


def _check_sampling(sampling: inference_pb2.Sampling, limits: Limits) -> None:
    _check_range(sampling, "temperature", 0.0, _MAX_TEMPERATURE)
    _check_range(sampling, "top_p", 0.0, 1.0)
    _check_range(sampling, "min_p", 0.0, 1.0)
    _check_range(sampling, "presence_penalty", -_MAX_PENALTY, _MAX_PENALTY)
    _check_range(sampling, "frequency_penalty", -_MAX_PENALTY, _MAX_PENALTY)
    if not sampling.top_k >= -1:
        raise InvalidRequestError("sampling.top_k", "must be at least -1; 0 and -1 turn it off")
    _check_range(sampling, "repetition_penalty", _MIN_REPETITION_PENALTY, _MAX_REPETITION_PENALTY)
    _check_count("sampling.logit_bias", len(sampling.logit_bias), limits.max_logit_bias)
    _check_ids("sampling.logit_bias", list(sampling.logit_bias), limits)
    for bias in sampling.logit_bias.values():
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            raise InvalidRequestError("sampling.logit_bias", f"each must be in [{-_MAX_BIAS}, {_MAX_BIAS}]")


def _check_range(sampling: inference_pb2.Sampling, name: str, low: float, high: float) -> None:
    if sampling.HasField(name) and not low <= getattr(sampling, name) <= high:
        raise InvalidRequestError(f"sampling.{name}", f"must be a number in [{low}, {high}]")


def _check_resume(request: inference_pb2.GenerateRequest, limits: Limits) -> None:
    if not request.HasField("resume"):
        return
    choices = request.resume.choices
    num_choices = max(1, request.n)
    if len(choices) != num_choices:
        raise InvalidRequestError("resume.choices", f"{len(choices)} lists for {num_choices} choices; send one each")
    for index, choice in enumerate(choices):
        field = f"resume.choices[{index}].token_ids"
        num_emitted = len(choice.token_ids)
        if request.HasField("max_tokens") and num_emitted > request.max_tokens:
            raise InvalidRequestError(field, f"{num_emitted} tokens; max_tokens is {request.max_tokens}")
        if num_emitted >= limits.max_len:
            raise InvalidRequestError(field, f"{num_emitted} tokens; prompt and output share {limits.max_len}")
        _check_ids(field, choice.token_ids, limits)


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequestError(field, f"{count} entries; at most {most}")


def _check_ids(field: str, ids: Sequence[int], limits: Limits) -> None:
    # The wire has them unsigned, so only the upper end can be wrong.
    largest = largest_id(ids) if isinstance(ids, array) else max(ids, default=0)
    if not largest < limits.vocab_size:
        raise InvalidRequestError(
            field, f"token id {largest} is not in the vocabulary; ids go from 0 to {limits.vocab_size - 1}"
        )


def refuse_unknown_fields(request: Message) -> None:
    """A field of a newer contract may change what the caller gets: dropping it silently would be a wrong answer."""
    for path, message in _messages(request, ""):
        unknown = UnknownFieldSet(message)
        if len(unknown):
            raise InvalidRequestError(
                f"{path}#{unknown[0].field_number}", "a field that this build does not know; leave it out"
            )


def _messages(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """The message and all within it, each with the prefix of its fields' names. Few: the counts were checked."""
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        name = f"{path}{field.name}"
        if field.is_repeated:
            for index, item in enumerate(value):
                yield from _messages(item, f"{name}[{index}].")
        else:
            yield from _messages(value, f"{name}.")
