"""What an HTTP front needs from whatever runs requests, and that behind a gRPC channel.

A pod runs them in its own engine, the operator on its pods; the front cannot tell them apart. Errors are those of our
tree on both ways. Holds no state.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from headstart.contract.proto import inference_pb2, inference_pb2_grpc
from headstart.edge.interceptor import PUSHBACK_KEY
from headstart.errors import HeadstartError, InvalidRequestError, UnavailableError
from headstart.telemetry.propagation import outgoing_headers


class Completions(Protocol):
    """Runs requests of the contract."""

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome."""

    async def models(self) -> Sequence[inference_pb2.Model]:
        """What is served now, without duplicates."""

    def generate(
        self, request: inference_pb2.GenerateRequest, *, deadline_s: float | None = None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """The messages of one Generate call; `deadline_s` is on the monotonic clock. Raises HeadstartError.

        Whoever does not read to the end must `aclose` it: that cancels the request.
        """


class ChannelCompletions:
    """Runs requests on the `Inference` service behind `channel`, which stays the caller's to close."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub: Any = inference_pb2_grpc.InferenceStub(channel)

    @property
    def is_ready(self) -> bool:
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def models(self) -> Sequence[inference_pb2.Model]:
        try:
            return [await self._stub.GetModel(inference_pb2.GetModelRequest(), metadata=outgoing_headers())]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def generate(
        self, request: inference_pb2.GenerateRequest, *, deadline_s: float | None = None
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        call = self._stub.Generate(request, timeout=timeout_s, metadata=outgoing_headers())
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        finally:
            call.cancel()


def error_of(error: grpc.aio.AioRpcError) -> HeadstartError:
    """The error of our tree that a server turned into this status, as far as the status tells."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, reason = details.partition(": ")
        return InvalidRequestError(field, reason) if reason else InvalidRequestError("request", details)
    if code is grpc.StatusCode.UNAVAILABLE:
        pushback_ms = dict(error.trailing_metadata() or ()).get(PUSHBACK_KEY, "")
        is_given = isinstance(pushback_ms, str) and pushback_ms.isdigit()
        return UnavailableError(details, retry_after_s=int(pushback_ms) / 1000 if is_given else 0.1)
    mapped = HeadstartError(details)
    mapped.status = code.name
    return mapped
