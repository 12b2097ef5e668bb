"""The `Inference` service of a pod: from a request to the engine, and from its chunks to the wire.

Checks, texts and statuses are `edge`'s; this module only joins them to the engine. It knows nothing of steps or blocks.
Owner of its state (the calls in progress): the server's event loop.
"""

# ruff: noqa: ARG002, N802  (gRPC fixes the names and the arguments of handlers)

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any

import grpc.aio

from headstart.contract import codec
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2, inference_pb2_grpc
from headstart.contract.request import GenerateSpec
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart.edge.specs import build_specs
from headstart.edge.validation import check_generate, check_prompt_length, check_tokenize
from headstart.engine.handle import EngineHandle
from headstart.engine.stream import RequestStream
from headstart.errors import FailedPreconditionError, UnavailableError
from headstart.server.generation import Generation
from headstart.server.load_report import LOAD_REPORT_KEY, encode_load_report
from headstart.text.tokenizer import Tokenizer

EPOCH_KEY = "headstart-epoch"
TRACE_PARENT_KEY = "traceparent"

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """One pod's model behind gRPC. `tokenizer` is None for a pod that only takes token ids."""

    def __init__(
        self,
        engine: EngineHandle,
        *,
        identity: PodIdentity,
        limits: Limits,
        prompts: PromptReader,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._limits = limits
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._clock = clock
        self._streams: set[RequestStream] = set()
        self._is_stopping = False

    @property
    def num_running(self) -> int:
        """Choices in progress; 0 whenever no call is."""
        return len(self._streams)

    def stop(self) -> None:
        """End every call: each choice finishes as cancelled with what it has, then the call is UNAVAILABLE."""
        self._is_stopping = True
        for stream in self._streams:
            self._engine.cancel(stream.request_id)

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        self._check_epoch(context)
        check_generate(request, self._limits)
        deadline_s = self._deadline_s(context)
        specs = build_specs(
            request,
            await self._prompts.read(request),
            limits=self._limits,
            deadline_s=deadline_s,
            trace_parent=_metadata_value(context, TRACE_PARENT_KEY),
        )
        generation = Generation(
            specs,
            context,
            token_bytes=self._token_bytes,
            clock=self._clock,
            echoes_prompt=request.echo_token_ids,
        )
        self._check_open()
        streams = await self._engine.submit_all(specs)
        self._streams.update(streams)
        if self._is_stopping:
            self.stop()  # it came while the engine was being asked
        try:
            await generation.relay(streams)
        finally:
            # Closing a stream that has not ended cancels its request: the client left, or another choice failed.
            for stream in streams:
                self._streams.discard(stream)
                await stream.aclose()
            self._set_trailers(context, specs[0], generation.cached_tokens)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        check_tokenize(request, self._limits)
        token_ids = await self._prompts.read(request)
        check_prompt_length(request.WhichOneof("prompt") or "prompt", len(token_ids), self._limits)
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def GetTokenizer(self, request: inference_pb2.GetTokenizerRequest, context: Context) -> None:
        if self._tokenizer is None:
            raise FailedPreconditionError("this pod has no tokenizer")
        document = await asyncio.to_thread(self._tokenizer.to_document)
        digest = hashlib.sha256(document).hexdigest()
        for message in codec.encode_tokenizer(document, digest):
            await context.write(message)

    async def GetModel(self, request: inference_pb2.GetModelRequest, context: Context) -> inference_pb2.Model:
        return codec.encode_model(self._identity)

    def _check_open(self) -> None:
        if self._is_stopping:
            raise UnavailableError("this pod is stopping; another pod may serve the request")

    def _check_epoch(self, context: Context) -> None:
        """A caller that means an earlier process at this address must not be served by this one."""
        epoch = _metadata_value(context, EPOCH_KEY)
        if epoch and epoch != self._identity.epoch:
            raise UnavailableError("the pod that you mean is gone; another one has its address")

    def _deadline_s(self, context: Context) -> float | None:
        remaining_s: float | None = context.time_remaining()
        return None if remaining_s is None else self._clock() + remaining_s

    def _token_bytes(self, token_id: int) -> bytes:
        return b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)

    def _set_trailers(self, context: Context, spec: GenerateSpec, cached_tokens: int) -> None:
        context.set_trailing_metadata(
            (
                ("headstart-prompt-tokens", str(len(spec.prompt_token_ids))),
                ("headstart-cached-tokens", str(cached_tokens)),
                ("headstart-pod", self._identity.pod_name),
                (LOAD_REPORT_KEY, encode_load_report(self._identity, self._engine.stats)),
            )
        )


def _metadata_value(context: Context, key: str) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else ""
    return ""
