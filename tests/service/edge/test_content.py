"""What a span holds of a request's words: the conventions' form, and never more than its bound."""

from __future__ import annotations

import json
from typing import Any

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.content import MAX_CHARS, CapturedContent, captured_attributes


def _chat(*messages: tuple[str, str]) -> pb.GenerateRequest:
    chat = pb.Chat(messages=[pb.Message(role=role, content=[pb.ContentPart(text=text)]) for role, text in messages])
    return pb.GenerateRequest(chat=chat)


def _input(request: pb.GenerateRequest) -> Any:
    return json.loads(captured_attributes([CapturedContent(request)])["gen_ai.input.messages"])


def _message(role: str, text: str, **more: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}], **more}


def test_a_chat_is_its_messages_and_a_text_is_the_users() -> None:
    assert _input(_chat(("system", "Be brief."), ("user", "Hé"))) == [
        _message("system", "Be brief."),
        _message("user", "Hé"),
    ]
    assert _input(pb.GenerateRequest(text="once")) == [_message("user", "once")]


def test_token_ids_have_no_words() -> None:
    assert captured_attributes([CapturedContent(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2])))]) == {}


def test_a_long_chat_keeps_its_newest_messages() -> None:
    assert _input(_chat(("system", "old"), ("user", "x" * (MAX_CHARS - 2)), ("user", "new"))) == [
        _message("user", "x" * (MAX_CHARS - 3)),
        _message("user", "new"),
    ]


def test_each_choice_is_one_message_with_the_reason_of_its_end() -> None:
    content = CapturedContent(pb.GenerateRequest(text="a", n=2))
    for index, text in ((0, "one "), (1, "uno"), (0, "two")):
        content.add(pb.GenerateResponse(chunk=pb.Chunk(index=index, text=text)))
    content.add(pb.GenerateResponse(finished=pb.Finished(index=0, finish_reason=pb.FINISH_REASON_STOP)))
    assert json.loads(captured_attributes([content])["gen_ai.output.messages"]) == [
        _message("assistant", "one two", finish_reason="stop"),
        _message("assistant", "uno", finish_reason="cancelled"),
    ]


def test_an_answer_without_end_is_cut() -> None:
    content = CapturedContent(pb.GenerateRequest(text="a"))
    for _ in range(3):
        content.add(pb.GenerateResponse(chunk=pb.Chunk(text="y" * (MAX_CHARS // 2 + 1))))
    (answer,) = json.loads(captured_attributes([content])["gen_ai.output.messages"])
    assert answer["parts"][0]["content"] == "y" * MAX_CHARS
