"""What a client has got, and the request that goes on from there."""

from __future__ import annotations

from headstart.contract.proto import inference_pb2 as pb
from headstart_operator.serving.delivery import Delivery, is_finished


def _chunk(index: int, *token_ids: int) -> bytes:
    return pb.GenerateResponse(chunk=pb.Chunk(index=index, token_ids=token_ids)).SerializeToString()


def _request(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7]), **fields)  # type: ignore[arg-type]


def _resumed(delivery: Delivery, request: pb.GenerateRequest) -> list[list[int]]:
    return [list(choice.token_ids) for choice in delivery.continuation(request).resume.choices]


def test_the_end_of_a_choice_is_told_from_a_chunk_by_its_first_byte() -> None:
    end = pb.GenerateResponse(finished=pb.Finished(index=0)).SerializeToString()
    assert is_finished(end)
    assert not is_finished(_chunk(0, 1))
    assert not is_finished(_chunk(1))
    assert not is_finished(b"")


def test_a_continuation_names_the_tokens_of_each_choice() -> None:
    request = _request(n=2)
    delivery = Delivery(request)
    for raw in (_chunk(0, 1, 2), _chunk(1, 9), _chunk(0, 3)):
        delivery.add_chunk(raw)
    assert _resumed(delivery, request) == [[1, 2, 3], [9]]


def test_the_callers_own_resumption_is_kept() -> None:
    request = _request(resume=pb.Resume(choices=[{"token_ids": [5, 6]}]))
    delivery = Delivery(request)
    assert not delivery.has_begun
    delivery.add_chunk(_chunk(0, 7))
    assert _resumed(delivery, request) == [[5, 6, 7]]


def test_a_finished_choice_is_named_with_all_its_tokens_too() -> None:
    request = _request(n=2)
    delivery = Delivery(request)
    delivery.add_chunk(_chunk(0, 1, 2))
    delivery.add_finished(0)
    assert _resumed(delivery, request) == [[1, 2], []]


def test_reports_on_the_prompt_are_not_asked_for_twice() -> None:
    request = _request(echo_token_ids=True, prompt_logprobs=0)
    delivery = Delivery(request)
    delivery.add_chunk(_chunk(0, 1))
    again = delivery.continuation(request)
    assert not again.echo_token_ids
    assert not again.HasField("prompt_logprobs")
    assert request.echo_token_ids


def test_long_streams_are_read_on_the_way_and_not_kept_as_messages() -> None:
    request = _request()
    delivery = Delivery(request)
    for start in range(0, 60_000, 100):
        delivery.add_chunk(_chunk(0, *range(start, start + 100)))
    assert len(delivery._kept) < 1000
    assert delivery.emitted() == [list(range(60_000))]
