"""The `Inference` service of the operator, to clients the same as a pod's: it joins the proxy to gRPC.

Responses are bytes all the way, so its handlers are registered by name instead of through the generated base class.
Holds no state.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from headstart.contract import codec
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.access import Gate
from headstart.edge.operation import OPERATION_KEY
from headstart.edge.validation import check_prompt, check_question, check_tokenize
from headstart.errors import FailedPreconditionError
from headstart.telemetry.propagation import outgoing_headers

from headstart_operator.serving.attempt import EPOCH_KEY, Metadata
from headstart_operator.serving.balancer import Balancer
from headstart_operator.serving.proxy import Call, Proxy

SERVICE = "headstart.v1.Inference"

_TRACE_KEYS = frozenset({"traceparent", "tracestate"})
_OWN_KEYS = frozenset({"user-agent", "content-type", "te", "host", "authorization", EPOCH_KEY, OPERATION_KEY})

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService:
    """Clients' requests, run on the fleet. `gate` tells whose they are; None where no keys are asked for."""

    def __init__(
        self,
        proxy: Proxy,
        balancer: Balancer,
        *,
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proxy = proxy
        self._balancer = balancer
        self._gate = gate
        self._clock = clock

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server registers."""
        methods: dict[str, Any] = {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate, request_deserializer=pb.GenerateRequest.FromString
            ),
            "Tokenize": grpc.unary_unary_rpc_method_handler(
                self.tokenize,
                request_deserializer=pb.TokenizeRequest.FromString,
                response_serializer=pb.TokenizeResponse.SerializeToString,
            ),
            "GetTokenizer": grpc.unary_stream_rpc_method_handler(
                self.get_tokenizer,
                request_deserializer=pb.GetTokenizerRequest.FromString,
                response_serializer=pb.TokenizerChunk.SerializeToString,
            ),
            "GetModel": grpc.unary_unary_rpc_method_handler(
                self.get_model,
                request_deserializer=pb.GetModelRequest.FromString,
                response_serializer=pb.Model.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Writing waits for the client, and the pod is read only then: a slow client slows its own stream."""
        remaining_s = context.time_remaining()
        call = Call(
            deadline_s=None if remaining_s is None else self._clock() + remaining_s,
            tenant=self._gate.rpc_caller(context.invocation_metadata()).tenant if self._gate is not None else "",
            metadata=_passed_metadata(context),
        )
        messages: AsyncGenerator[bytes]
        try:
            async with aclosing(self._proxy.stream(request, call)) as messages:
                async for raw in messages:
                    await context.write(raw)
        finally:
            context.set_trailing_metadata(call.trailers)

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: ARG002
        entry = await self._balancer.entry(request.model)
        check_tokenize(request, entry.limits)
        token_ids = await entry.prompts.read(request)
        check_prompt(request.WhichOneof("prompt") or "prompt", token_ids, entry.limits)
        return pb.TokenizeResponse(token_ids=token_ids)

    async def get_tokenizer(self, request: pb.GetTokenizerRequest, context: Context) -> None:
        entry = await self._balancer.entry(request.model)
        check_question(request, entry.limits)
        if not entry.document:
            raise FailedPreconditionError("the pods have no tokenizer")
        digest = await asyncio.to_thread(lambda: hashlib.sha256(entry.document).hexdigest())
        for message in codec.encode_tokenizer(entry.document, digest):
            await context.write(message)

    async def get_model(self, request: pb.GetModelRequest, context: Context) -> pb.Model:  # noqa: ARG002
        entry = await self._balancer.entry(request.model)
        check_question(request, entry.limits)
        return entry.model


def _passed_metadata(context: Context) -> Metadata:
    """The caller's own metadata for the pod, and the trace that this call belongs to."""
    incoming = [
        (key, value) for key, value in context.invocation_metadata() or () if not key.startswith((":", "grpc-"))
    ]
    own_trace = outgoing_headers()
    skipped = _OWN_KEYS | _TRACE_KEYS if own_trace else _OWN_KEYS
    return (*((key, value) for key, value in incoming if key not in skipped), *own_trace)
