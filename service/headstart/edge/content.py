"""The words of a request for its span, when somebody has asked for them: off unless `telemetry.capture_content` is set.

In the form of OpenTelemetry's GenAI conventions: `gen_ai.input.messages` and `gen_ai.output.messages`, as JSON text. A
prompt of token ids has no words. Owner of its state: the call whose words it keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headstart.contract.proto import inference_pb2 as pb

MAX_CHARS = 32_768
"""Of all texts of one attribute together; what is more is left out."""


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

    def attributes(self) -> Mapping[str, str]:
        """For the call's span."""
        attributes = {}
        asked = _input_messages(self._request)
        if asked:
            attributes["gen_ai.input.messages"] = json.dumps(asked, ensure_ascii=False)
        answered = [self._answer(index) for index in sorted(self._texts.keys() | self._reasons.keys())]
        if answered:
            attributes["gen_ai.output.messages"] = json.dumps(answered, ensure_ascii=False)
        return attributes

    def _answer(self, index: int) -> dict[str, Any]:
        message = _message("assistant", "".join(self._texts.get(index, ())))
        return message | {"finish_reason": self._reasons.get(index, "cancelled")}


def finish_reason(finished: pb.Finished) -> str:
    """As a word: stop, length, cancelled or error."""
    return pb.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()


def _input_messages(request: pb.GenerateRequest) -> list[dict[str, Any]]:
    """The newest messages first get their room: an old one says less of what was asked."""
    room, kept = MAX_CHARS, []
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
