"""The words of a request for its span, when somebody has asked for them: off unless `telemetry.capture_content` is set.

In the form of OpenTelemetry's GenAI conventions: `gen_ai.input.messages` and `gen_ai.output.messages`, as JSON text. A
prompt of token ids has no words. Owner of its state: the call whose words it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headstart.contract.proto import inference_pb2 as pb

MAX_CHARS = 32_768
"""Of all texts of one attribute together, of however many calls; what is more is left out."""


class CapturedContent:
    """One call's words. Give it each message that leaves."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._request = request
        self._texts: dict[int, list[str]] = {}
        self._reasons: dict[int, str] = {}
        self._room = MAX_CHARS

    def add(self, message: pb.GenerateResponse) -> None:
        """Note the text of a chunk, or how a choice ended."""
        if message.HasField("finished"):
            self._reasons[message.finished.index] = finish_reason(message.finished)
        elif message.chunk.text and self._room:
            text = message.chunk.text[: self._room]
            self._room -= len(text)
            self._texts.setdefault(message.chunk.index, []).append(text)

    def asked(self, room: int) -> list[dict[str, Any]]:
        """What was asked, in at most `room` characters."""
        return _input_messages(self._request, room)

    def answers(self, room: int) -> list[dict[str, Any]]:
        """What each choice answered, all in at most `room` characters."""
        answers = []
        for index in sorted(self._texts.keys() | self._reasons.keys()):
            text = "".join(self._texts.get(index, ()))[:room]
            room -= len(text)
            answers.append(_message("assistant", text) | {"finish_reason": self._reasons.get(index, "cancelled")})
        return answers


def captured_attributes(contents: Iterable[CapturedContent]) -> dict[str, str]:
    """For the span that all these calls belong to, in their order."""
    asked: list[dict[str, Any]] = []
    answered: list[dict[str, Any]] = []
    for content in contents:
        asked += content.asked(MAX_CHARS - _num_chars(asked))
        answered += content.answers(MAX_CHARS - _num_chars(answered))
    found = {"gen_ai.input.messages": asked, "gen_ai.output.messages": answered}
    return {name: json.dumps(messages, ensure_ascii=False) for name, messages in found.items() if messages}


def finish_reason(finished: pb.Finished) -> str:
    """As a word: stop, length, cancelled or error."""
    return pb.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()


def _input_messages(request: pb.GenerateRequest, room: int) -> list[dict[str, Any]]:
    """The newest messages first get their room: an old one says less of what was asked."""
    kept = []
    for role, text in reversed(_asked(request)):
        if not room:
            break
        kept.append(_message(role, text[:room]))
        room -= min(room, len(text))
    return kept[::-1]


def _asked(request: pb.GenerateRequest) -> list[tuple[str, str]]:
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return [("user", request.text)]
    if kind == "chat":
        return [(each.role, "".join(part.text for part in each.content)) for each in request.chat.messages]
    return []


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _num_chars(messages: Iterable[dict[str, Any]]) -> int:
    return sum(len(message["parts"][0]["content"]) for message in messages)
