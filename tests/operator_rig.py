"""Simulated pods and an operator around them, in this process and on loopback, for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import grpc.aio
from headstart.app.pod import Pod, start_pod
from headstart.config import load_settings
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart_operator.app import Operator, start_operator
from headstart_operator.config import OperatorConfig

_SETTINGS = {
    "runner.kind": "simulated",
    "runner.step_seconds": 0,
    "runner.token_seconds": 0,
    "cache.num_blocks": 256,
    "server.host": "127.0.0.1",
    "server.grpc_port": 0,
    "server.health_port": 0,
    "server.http_port": 0,
    "server.metrics_port": 0,
}


async def start_simulated_pod(name: str, **overrides: Any) -> Pod:
    """A pod without weights; `runner__step_seconds=0.01` overrides that key."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    with mock.patch.dict(os.environ, {"POD_NAME": name}):
        return await start_pod(load_settings(_SETTINGS | keys), progress=_silent)


def _silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


@dataclass
class Rig:
    """Pods behind one operator, and a channel to it."""

    pods: list[Pod]
    operator: Operator
    channel: grpc.aio.Channel
    stub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.stub = rpc.InferenceStub(self.channel)

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self.pods[index].grpc_port}"

    def pod(self, name: str) -> Pod:
        return self.pods[int(name.removeprefix("pod-"))]


@asynccontextmanager
async def rig(
    num_pods: int = 2,
    *,
    config: dict[str, Any] | None = None,
    first: dict[str, Any] | None = None,
    **overrides: Any,
) -> AsyncIterator[Rig]:
    """`first` overrides settings of the first pod only."""
    async with AsyncExitStack() as stack:
        pods: list[Pod] = []
        for index in range(num_pods):
            own = first or {} if index == 0 else {}
            pods.append(await start_simulated_pod(f"pod-{index}", **(overrides | own)))
            stack.push_async_callback(pods[-1].stop)
        endpoints = tuple(f"127.0.0.1:{pod.grpc_port}" for pod in pods)
        operator = await start_operator(
            OperatorConfig(
                endpoints=endpoints,
                host="127.0.0.1",
                grpc_port=0,
                health_port=0,
                http_port=0,
                metrics_port=0,
                **(config or {}),
            )
        )
        stack.push_async_callback(operator.stop)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{operator.grpc_port}"))
        await asyncio.wait_for(operator.wait_ready(), 10)
        yield Rig(list(pods), operator, channel)


@dataclass
class Answer:
    """What a client got, by choice, and the trailers."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, pb.Finished] = field(default_factory=dict)
    messages: list[pb.GenerateResponse] = field(default_factory=list)
    trailers: dict[str, Any] = field(default_factory=dict)

    async def read(self, call: Any) -> None:
        """Take all that is left. Raises AioRpcError."""
        while (message := await call.read()) is not grpc.aio.EOF:
            self.take(message)

    def take(self, message: pb.GenerateResponse) -> None:
        self.messages.append(message)
        if message.HasField("finished"):
            assert message.finished.index not in self.finished
            self.finished[message.finished.index] = message.finished
        else:
            assert message.chunk.index not in self.finished
            self.token_ids.setdefault(message.chunk.index, []).extend(message.chunk.token_ids)


async def generate(stub: Any, request: pb.GenerateRequest, *, timeout: float = 30, **kwargs: Any) -> Answer:
    """One request to its end. Raises AioRpcError."""
    answer = Answer()
    call = stub.Generate(request, timeout=timeout, **kwargs)
    await answer.read(call)
    answer.trailers = dict(await call.trailing_metadata())
    return answer


def prompt(start: int, length: int) -> pb.TokenIds:
    """Token ids that differ between `start`s."""
    return pb.TokenIds(ids=[(start * 1000 + i) % 40_000 for i in range(length)])


async def until(condition: Any, timeout_s: float = 10.0) -> None:
    """Wait for a condition that others make true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
