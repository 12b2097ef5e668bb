"""Messages of the contract as OpenAI's answers."""

from __future__ import annotations

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.openai_responses import Answer
from headstart.errors import InternalError


def _chunk(text: str, index: int = 0, logprobs: list[pb.TokenLogprobs] | None = None) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.Chunk(index=index, text=text, token_ids=[1], logprobs=logprobs or []))


def _finished(reason: int = pb.FINISH_REASON_STOP, index: int = 0, cached: int = 2) -> pb.GenerateResponse:
    usage = pb.Usage(prompt_tokens=5, cached_tokens=cached, completion_tokens=3)
    return pb.GenerateResponse(finished=pb.Finished(index=index, finish_reason=reason, usage=usage))


def _token(text: bytes, *tops: bytes) -> pb.TokenLogprobs:
    alternatives = [pb.TokenLogprobs.Alternative(token_bytes=top, logprob=-0.5) for top in tops]
    return pb.TokenLogprobs(token_bytes=text, logprob=-0.25, top=alternatives)


def test_the_prompt_is_counted_once_however_many_choices_it_has() -> None:
    answer = Answer("a", model="tiny", is_chat=True, num_choices=2)
    for message in (_chunk("x"), _finished(cached=2), _chunk("y", 1), _finished(index=1, cached=4)):
        answer.take(0, message)
    whole = answer.whole()
    assert whole["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["x", "y"]


def test_a_token_that_is_no_whole_character_keeps_its_bytes() -> None:
    answer = Answer("a", model="tiny", is_chat=True)
    answer.take(0, _chunk("", logprobs=[_token(b"\xe2\x82", b"a", b"\xff")]))
    answer.take(0, _finished())
    (entry,) = answer.whole()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xE2, 0x82], -0.25)
    assert [top["bytes"] for top in entry["top_logprobs"]] == [[97], [255]]


def test_offsets_of_a_completions_tokens_go_on_from_chunk_to_chunk() -> None:
    answer = Answer("a", model="tiny", is_chat=False)
    answer.take(0, _chunk("abc", logprobs=[_token(b"ab"), _token(b"c", b"c")]))
    (event,) = answer.take(0, _chunk("d", logprobs=[_token(b"d")]))
    assert event["choices"][0]["logprobs"]["text_offset"] == [3]
    answer.take(0, _finished())
    logprobs = answer.whole()["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 2, 3]
    assert logprobs["top_logprobs"] == [{}, {"c": -0.5}, {}]


@pytest.mark.parametrize("is_chat", [True, False])
def test_token_ids_come_with_their_text_when_they_were_asked_for(is_chat: bool) -> None:
    answer = Answer("a", model="tiny", is_chat=is_chat, has_token_ids=True)
    events = [event for text in "xy" for event in answer.take(0, _chunk(text))]
    answer.take(0, _finished())
    assert [event["choices"][0]["token_ids"] for event in events] == [[1], [1]]
    assert answer.whole()["choices"][0]["token_ids"] == [1, 1]
    silent = Answer("a", model="tiny", is_chat=is_chat)
    assert "token_ids" not in silent.take(0, _chunk("x"))[0]["choices"][0]


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_ERROR, pb.FINISH_REASON_UNSPECIFIED])
def test_a_bad_end_has_no_event_and_no_complete_answer(reason: int) -> None:
    answer = Answer("a", model="tiny", is_chat=True)
    answer.take(0, _chunk("x"))
    assert answer.take(0, _finished(reason)) == []
    with pytest.raises(InternalError):
        answer.check_complete()


def test_a_choice_without_an_end_makes_no_complete_answer() -> None:
    answer = Answer("a", model="tiny", is_chat=True, num_choices=2)
    answer.take(0, _finished())
    with pytest.raises(InternalError):
        answer.check_complete()


def test_a_chunk_that_carries_nothing_for_the_client_has_no_event() -> None:
    answer = Answer("a", model="tiny", is_chat=False)
    assert answer.take(0, pb.GenerateResponse(chunk=pb.Chunk(prompt_token_ids=[1, 2]))) == []


def test_a_completion_stream_has_no_opening_and_a_chat_one_per_choice() -> None:
    assert Answer("a", model="tiny", is_chat=False, num_choices=2).opening() == []
    openings = Answer("a", model="tiny", is_chat=True, num_choices=2).opening()
    assert [event["choices"][0]["index"] for event in openings] == [0, 1]
