"""One try on a pod: in which order a client gets what the pod says, of prompts that are reported on too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart_operator.decision.catalog import Entry
from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.reading import Reading
from headstart_operator.decision.score import Query, rank
from headstart_operator.decision.view import PodView
from headstart_operator.serving.attempt import Attempt, PodFailedError
from headstart_operator.serving.balancer import Claim
from headstart_operator.serving.delivery import Delivery


class ScriptedPod(rpc.InferenceServicer):
    """Says these messages, then this status."""

    def __init__(self, messages: Sequence[pb.GenerateResponse], status: grpc.StatusCode) -> None:
        self._messages, self._status = messages, status

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        for message in self._messages:
            yield message
        if self._status is not grpc.StatusCode.OK:
            await context.abort(self._status, "as the script says")


def _claim(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> Claim:
    group = GroupKey("m", "t", "r")
    view = PodView(PodKey("a", "e"), "a", "a", group, "", 16, 100, 8, channel=channel)
    limits = Limits(model="m", max_len=100, vocab_size=100, max_token_bytes=1)
    entry = Entry(
        model=pb.Model(name="m"), limits=limits, prompts=PromptReader(None, None, num_threads=1), document=b""
    )
    query = Query(prompt_tokens=4, max_tokens=4)
    encoded = request.SerializeToString()
    reading = Reading(group=group, entry=entry, request=request, encoded=encoded, query=query, view=view)
    return Claim(request_id="r~0", reading=reading, ranked=rank(query, [view])[0], num_candidates=1)


async def _heard(
    messages: Sequence[pb.GenerateResponse], *, status: grpc.StatusCode = grpc.StatusCode.OK
) -> list[tuple[str, int]]:
    """What a client gets of this script, by kind and choice; of a failure that nobody else takes over too."""
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2, 3, 4]), n=3, echo_token_ids=True)
    server = grpc.aio.server()
    rpc.add_InferenceServicer_to_server(ScriptedPod(messages, status), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    heard: list[bytes] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        attempt = Attempt(_claim(channel, request), Delivery(request))
        try:
            async with asyncio.timeout(10):
                heard.extend([raw async for raw in attempt.relay(metadata=(), timeout_s=None)])
        except PodFailedError:
            heard.extend(attempt.held())
    await server.stop(None)
    told = [pb.GenerateResponse.FromString(raw) for raw in heard]
    return [(event, getattr(each, event).index) for each in told if (event := each.WhichOneof("event"))]


def _chunk(index: int, **fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.Chunk(index=index, **fields))


def _end(index: int, reason: pb.FinishReason = pb.FINISH_REASON_STOP) -> pb.GenerateResponse:
    return pb.GenerateResponse(finished=pb.Finished(index=index, finish_reason=reason))


_REPORT = _chunk(0, prompt_token_ids=[1, 2, 3, 4])


@pytest.mark.parametrize("last", [_chunk(0, token_ids=[7]), None])
async def test_no_choice_ends_before_its_last_chunk_while_a_report_is_kept_back(
    last: pb.GenerateResponse | None,
) -> None:
    first = [_REPORT, _chunk(1, token_ids=[5]), _end(1), _chunk(2, token_ids=[6])]
    script = [*first, *([last] if last else []), _end(0), _end(2)]
    assert await _heard(script) == [
        ("chunk", 0),
        ("chunk", 1),
        ("finished", 1),
        ("chunk", 2),
        *([("chunk", 0)] if last else []),
        ("finished", 0),
        ("finished", 2),
    ]


async def test_what_was_kept_back_comes_before_the_ends_of_a_request_that_ran_out_of_time() -> None:
    cut = [_end(index, pb.FINISH_REASON_CANCELLED) for index in (0, 2)]
    script = [_REPORT, _chunk(1, token_ids=[5]), _end(1), *cut]
    heard = await _heard(script, status=grpc.StatusCode.DEADLINE_EXCEEDED)
    assert heard == [("chunk", 0), ("chunk", 1), ("finished", 1), ("finished", 0), ("finished", 2)]


async def test_nothing_is_heard_of_a_pod_that_dies_before_the_report_is_complete() -> None:
    script = [_REPORT, _chunk(1, token_ids=[5]), _end(1)]
    assert await _heard(script, status=grpc.StatusCode.UNAVAILABLE) == []
