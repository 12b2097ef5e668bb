"""The contract's messages as OpenAI's answers: whole ones, and the events of a stream. Pure of any connection.

Owner of an `Answer`'s state: the call that it answers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.contract.proto import inference_pb2 as pb
from headstart.errors import InternalError

Json = dict[str, Any]

_REASONS: Mapping[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class Answer:
    """What one HTTP request gets, built from the messages of its calls.

    A body with several prompts makes one call each; choice `i` of call `c` is choice `c * num_choices + i` here. With
    `has_token_ids` each choice tells the ids of its tokens next to their text.
    """

    def __init__(
        self,
        answer_id: str,
        *,
        model: str,
        is_chat: bool,
        num_calls: int = 1,
        num_choices: int = 1,
        has_token_ids: bool = False,
    ) -> None:
        self._is_chat = is_chat
        self._has_token_ids = has_token_ids
        self._num_choices = num_choices
        self._num_total = num_calls * num_choices
        # Made as they come, because `num_choices` is only known to be sane once the request was taken.
        self._choices: defaultdict[int, _Choice] = defaultdict(_Choice)
        self._usage = pb.Usage()
        self._head: Json = {"id": answer_id, "created": int(time.time()), "model": model}

    def take(self, call: int, message: pb.GenerateResponse) -> list[Json]:
        """Note a message; returns the events that a stream sends for it."""
        first = call * self._num_choices
        if message.WhichOneof("event") == "chunk":
            return self._take_chunk(first + message.chunk.index, message.chunk)
        return self._take_finished(first + message.finished.index, message.finished)

    def opening(self) -> list[Json]:
        """The events that a stream begins with: a chat says who speaks. To be sent once a message has come."""
        if not self._is_chat:
            return []
        role = {"delta": {"role": "assistant", "content": ""}}
        return [self._event(index, role) for index in range(self._num_total)]

    def usage_event(self) -> Json:
        """The last event of a stream that was asked for the usage."""
        return self._head | {"object": self._object(is_event=True), "choices": [], "usage": self._counts()}

    def check_complete(self) -> None:
        """Raises InternalError unless every choice came to a good end."""
        if not all(self._choices[index].reason for index in range(self._num_total)):
            raise InternalError("the answer broke off")

    def whole(self) -> Json:
        """The answer to a request that is not streamed."""
        choices = [self._whole_choice(index, choice) for index, choice in sorted(self._choices.items())]
        return self._head | {
            "object": self._object(is_event=False),
            "choices": choices,
            "usage": self._counts(),
        }

    def _take_chunk(self, index: int, chunk: pb.Chunk) -> list[Json]:
        if not (chunk.text or chunk.token_ids or chunk.logprobs):
            return []
        choice = self._choices[index]
        choice.text.append(chunk.text)
        logprobs = self._logprobs(choice, chunk.logprobs)
        for name, entries in (logprobs or {}).items():
            choice.logprobs.setdefault(name, []).extend(entries)
        content: Json = {"delta": {"content": chunk.text}} if self._is_chat else {"text": chunk.text}
        if self._has_token_ids:
            choice.token_ids.extend(chunk.token_ids)
            content["token_ids"] = list(chunk.token_ids)
        return [self._event(index, content | {"logprobs": logprobs})]

    def _take_finished(self, index: int, finished: pb.Finished) -> list[Json]:
        usage = finished.usage
        if finished.index == 0:
            self._usage.prompt_tokens += usage.prompt_tokens
            self._usage.cached_tokens += usage.cached_tokens
        self._usage.completion_tokens += usage.completion_tokens
        # Other reasons have no word here: the call's error follows and says it.
        reason = _REASONS.get(finished.finish_reason, "")
        self._choices[index].reason = reason
        if not reason:
            return []
        content: Json = {"delta": {}} if self._is_chat else {"text": ""}
        return [self._event(index, content | {"logprobs": None, "finish_reason": reason})]

    def _event(self, index: int, content: Json) -> Json:
        choice = {"index": index, "finish_reason": None} | content
        return self._head | {"object": self._object(is_event=True), "choices": [choice]}

    def _whole_choice(self, index: int, choice: _Choice) -> Json:
        text = "".join(choice.text)
        content: Json = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        if self._has_token_ids:
            content["token_ids"] = choice.token_ids
        return content | {"index": index, "logprobs": choice.logprobs or None, "finish_reason": choice.reason}

    def _logprobs(self, choice: _Choice, entries: Sequence[pb.TokenLogprobs]) -> Json | None:
        if not entries:
            return None
        if self._is_chat:
            return {"content": [_chat_logprobs(entry) for entry in entries]}
        return _completion_logprobs(choice, entries)

    def _counts(self) -> Json:
        prompt, completion = self._usage.prompt_tokens, self._usage.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._usage.cached_tokens},
        }

    def _object(self, *, is_event: bool) -> str:
        if self._is_chat:
            return "chat.completion.chunk" if is_event else "chat.completion"
        return "text_completion"


class _Choice:
    """One choice so far. `reason` is "" until it came to a good end."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: dict[str, list[Any]] = {}
        self.num_chars = 0
        self.reason = ""


def model_list(models: Sequence[pb.Model]) -> Json:
    """`GET /v1/models`."""
    return {"object": "list", "data": [model_entry(model) for model in models]}


def model_entry(model: pb.Model) -> Json:
    """One model, with the context length under vLLM's name."""
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "headstart",
        "max_model_len": model.context_length,
    }


def _text(token_bytes: bytes) -> str:
    return token_bytes.decode("utf-8", "replace")


def _chat_logprobs(entry: pb.TokenLogprobs) -> Json:
    def one(item: pb.TokenLogprobs | pb.TokenLogprobs.Alternative) -> Json:
        return {"token": _text(item.token_bytes), "logprob": item.logprob, "bytes": list(item.token_bytes)}

    return one(entry) | {"top_logprobs": [one(top) for top in entry.top]}


def _completion_logprobs(choice: _Choice, entries: Sequence[pb.TokenLogprobs]) -> Json:
    tokens = [_text(entry.token_bytes) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(choice.num_chars)
        choice.num_chars += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{_text(top.token_bytes): top.logprob for top in entry.top} for entry in entries],
        "text_offset": offsets,
    }
