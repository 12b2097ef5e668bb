"""A connection to the only pod breaks: what ran on it goes on, what comes waits a moment, nobody hears of sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart_operator.app import Operator, start_operator
from headstart_operator.config import OperatorConfig
from operator_rig import Answer, generate, prompt, start_simulated_pod
from support.service_port import pump


class Wire:
    """Carries bytes to a port until it is cut; then new connections are carried, unless it stays `down`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_down = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@contextlib.asynccontextmanager
async def wired() -> AsyncIterator[tuple[Wire, Operator, Any]]:
    """A router that reaches its one pod by a wire, and a client's stub."""
    async with contextlib.AsyncExitStack() as stack:
        pod = await start_simulated_pod("pod", runner__step_seconds=0.02)
        stack.push_async_callback(pod.stop)
        wire = Wire(pod.grpc_port)
        server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
        stack.callback(server.close)
        ports = dict.fromkeys(("grpc_port", "health_port", "http_port", "metrics_port"), 0)
        endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        operator = await start_operator(OperatorConfig(endpoints=(endpoint,), host="127.0.0.1", **ports))  # type: ignore[arg-type]
        stack.push_async_callback(operator.stop)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{operator.grpc_port}"))
        await asyncio.wait_for(operator.wait_ready(), 10)
        yield wire, operator, rpc.InferenceStub(channel)


def _request(max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=prompt(1, 32), max_tokens=max_tokens)


async def test_a_stream_goes_on_over_a_new_connection_and_new_requests_wait_for_it() -> None:
    async with wired() as (wire, operator, stub):
        whole = await generate(stub, _request(40))
        call = stub.Generate(_request(40), timeout=30)
        answer = Answer()
        answer.take(await call.read())
        wire.cut()
        while operator.fleet.snapshot():
            await operator.fleet.changed()
        late = await generate(stub, _request(4))
        await answer.read(call)
        assert answer.token_ids == whole.token_ids
        assert late.token_ids[0] == whole.token_ids[0][:4]


async def test_a_pod_that_stays_away_is_said_not_to_be_reached_and_its_socket_is_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "headstart_operator")
    async with wired() as (wire, _, stub):
        call = stub.Generate(_request(2000), timeout=30)
        answer = Answer()
        answer.take(await call.read())
        wire.is_down = True
        wire.cut()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await answer.read(call)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert failure.value.details() == "the pod could not be reached"
        assert answer.finished[0].finish_reason == pb.FINISH_REASON_CANCELLED
        assert "pod pod: a call broke off (" in caplog.text
