"""What a client shows of one answer that several servers give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from headstart.cli.resuming import stream_answer
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc

_LOST = grpc.StatusCode.UNAVAILABLE


class Server(rpc.InferenceServicer):
    """Gives one script after the other: messages, and the status that ends them."""

    def __init__(self, *scripts: tuple[Sequence[pb.GenerateResponse], grpc.StatusCode]) -> None:
        self.scripts = list(scripts)
        self.requests: list[pb.GenerateRequest] = []

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:
        self.requests.append(request)
        messages, code = self.scripts.pop(0)
        yield from messages
        if code is not grpc.StatusCode.OK:
            context.abort(code, "so the script says")


@contextmanager
def _stub(server: Server) -> Iterator[rpc.InferenceStub]:
    with ThreadPoolExecutor(1) as threads:
        running = grpc.server(threads)
        rpc.add_InferenceServicer_to_server(server, running)
        port = running.add_insecure_port("127.0.0.1:0")
        running.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rpc.InferenceStub(channel)
        running.stop(None).wait()


def _chunk(index: int, *token_ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.Chunk(index=index, text="x" * len(token_ids), token_ids=token_ids))


def _end(index: int, reason: pb.FinishReason, num_tokens: int) -> pb.GenerateResponse:
    usage = pb.Usage(completion_tokens=num_tokens)
    return pb.GenerateResponse(finished=pb.Finished(index=index, finish_reason=reason, usage=usage))


_STOPPED = (
    [
        _chunk(0, 1),
        _chunk(1, 7, 8),
        _end(1, pb.FINISH_REASON_STOP, 2),
        _chunk(0, 2),
        _end(0, pb.FINISH_REASON_CANCELLED, 2),
    ],
    _LOST,
)


def test_a_stopped_servers_end_is_dropped_for_the_rest_and_what_was_whole_is_not_told_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rest = [_end(1, pb.FINISH_REASON_STOP, 2), _chunk(0, 3), _end(0, pb.FINISH_REASON_LENGTH, 3)]
    server = Server(_STOPPED, ([], _LOST), (rest, grpc.StatusCode.OK))
    with _stub(server) as stub:
        shown = list(stream_answer(stub, pb.GenerateRequest(n=2), timeout=20))
    ends = {each.finished.index: each.finished for each in shown if each.HasField("finished")}
    assert [list(each.chunk.token_ids) for each in shown if each.HasField("chunk")] == [[1], [7, 8], [2], [3]]
    assert len(shown) == 4 + len(ends)
    assert ends[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert ends[0].timings.ttft_s > 0
    first, *others = server.requests
    assert not first.HasField("resume")
    for request in others:
        assert [list(choice.token_ids) for choice in request.resume.choices] == [[1, 2], [7, 8]]
        assert request.sampling.seed == first.sampling.seed != 0
    told = capsys.readouterr().err.splitlines()
    assert told == ["headstart: UNAVAILABLE: so the script says; asking again after 4 tokens"]


def test_the_ends_of_a_server_that_nobody_replaces_are_shown_before_the_error() -> None:
    with _stub(Server(_STOPPED)) as stub:
        shown: list[pb.GenerateResponse] = []
        with pytest.raises(grpc.RpcError) as caught:
            shown.extend(stream_answer(stub, pb.GenerateRequest(n=2), timeout=0.2))
    assert caught.value.code() is _LOST
    assert shown[-1].finished == _STOPPED[0][-1].finished
    assert [each.finished.index for each in shown if each.HasField("finished")] == [1, 0]


def test_an_error_that_a_second_try_would_not_mend_is_raised_at_once() -> None:
    server = Server(([_chunk(0, 1)], grpc.StatusCode.INTERNAL))
    with _stub(server) as stub, pytest.raises(grpc.RpcError) as caught:
        list(stream_answer(stub, pb.GenerateRequest(), timeout=20))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert len(server.requests) == 1


def test_a_loss_after_the_last_end_is_none() -> None:
    with _stub(Server(([_chunk(0, 1), _end(0, pb.FINISH_REASON_STOP, 1)], _LOST))) as stub:
        assert len(list(stream_answer(stub, pb.GenerateRequest(), timeout=20))) == 2
