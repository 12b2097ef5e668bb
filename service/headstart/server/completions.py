"""A pod's own `Completions`: from a request of the contract to the engine, and from its chunks to messages.

Every front of the pod, gRPC and HTTP, runs requests here. Checks and texts are `edge`'s; this module joins them to the
engine. It knows nothing of steps or blocks. Owner of its state (the calls in progress): the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from headstart.contract import codec
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, FinishReason
from headstart.edge.hop import Hop
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart.edge.specs import build_specs
from headstart.edge.validation import check_generate
from headstart.engine.handle import EngineHandle
from headstart.engine.messages import EngineStats
from headstart.engine.stream import RequestStream
from headstart.errors import UnavailableError
from headstart.server.generation import Generation
from headstart.server.recorder import CallRecord, RequestRecorder
from headstart.server.resumed import find_resumed_end
from headstart.telemetry.propagation import outgoing_headers
from headstart.telemetry.requests import cut_reason
from headstart.text.tokenizer import Tokenizer


class PodCompletions:
    """One pod's model. `tokenizer` is None for a pod that only takes token ids; `clock` is the recorder's."""

    def __init__(
        self,
        engine: EngineHandle,
        *,
        identity: PodIdentity,
        limits: Limits,
        prompts: PromptReader,
        tokenizer: Tokenizer | None,
        recorder: RequestRecorder,
    ) -> None:
        self.clock = recorder.clock
        self._engine = engine
        self._identity = identity
        self._limits = limits
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._streams: set[RequestStream] = set()
        self._is_stopping = False

    @property
    def is_ready(self) -> bool:
        return self._engine.is_ready and not self._is_stopping

    @property
    def num_running(self) -> int:
        """Choices in progress; 0 whenever no call is."""
        return len(self._streams)

    @property
    def engine_stats(self) -> EngineStats:
        return self._engine.stats

    async def models(self) -> Sequence[pb.Model]:
        return [codec.encode_model(self._identity)]

    async def limits(self) -> Limits:
        return self._limits

    def stop(self) -> None:
        """End every call: each choice finishes as cancelled with what it has, then the call is UNAVAILABLE."""
        self._is_stopping = True
        for stream in self._streams:
            self._engine.cancel(stream.request_id)

    async def generate(
        self,
        request: pb.GenerateRequest,
        *,
        deadline_s: float | None = None,
        tenant: str = "",  # noqa: ARG002  turns are the router's to give
        hop: Hop | None = None,
        operation: str = "",
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """The request's messages; closing it before the end cancels the request. Raises HeadstartError.

        `operation` is what a router says that it was.
        """
        call = self._recorder.begin(request, deadline_s=deadline_s, hop=hop, operation=operation)
        generation: Generation | None = None
        streams: list[RequestStream] = []
        try:
            generation = await self._prepare(request, call)
            self._check_open()
            if generation.specs_to_run:
                streams = await self._engine.submit_all(generation.specs_to_run)
            self._streams.update(streams)
            if self._is_stopping:
                self.stop()  # it came while the engine was being asked
            async for message in generation.messages(streams):
                if call.content is not None:
                    call.content.add(message)
                yield message
        except BaseException as error:
            call.error = error
            raise
        finally:
            end_s = self.clock()
            try:
                await self._leave(streams)
            finally:
                reason = cut_reason(call.error)
                if generation is not None and reason:
                    generation.end_unread(streams, FinishReason(reason))
                self._recorder.record(call, end_s=end_s)

    async def _leave(self, streams: Sequence[RequestStream]) -> None:
        """Closing a stream that has not ended cancels its request: the client left, or another choice failed.

        The engine answers with what it had done by then, which is told of it.
        """
        self._streams.difference_update(streams)
        for stream in streams:
            await stream.aclose()
        for stream in streams:
            await stream.wait_end()

    async def _prepare(self, request: pb.GenerateRequest, call: CallRecord) -> Generation:
        check_generate(request, self._limits)
        call.specs = build_specs(
            request,
            await self._prompts.read(request),
            limits=self._limits,
            deadline_s=call.deadline_s,
            trace_parent=dict(outgoing_headers()).get("traceparent", ""),
        )
        resumed_ends = await asyncio.to_thread(self._resumed_ends, call.specs) if request.HasField("resume") else {}
        generation = Generation(
            call.specs,
            token_bytes=self._token_bytes,
            clock=self.clock,
            echoes_prompt=request.echo_token_ids,
            resumed_ends=resumed_ends,
        )
        call.ends = generation.ends
        return generation

    def _resumed_ends(self, specs: Sequence[GenerateSpec]) -> dict[int, Chunk]:
        ends = {}
        for index, spec in enumerate(specs):
            end = find_resumed_end(
                spec,
                max_len=self._limits.max_len,
                eos_token_ids=frozenset(self._identity.eos_token_ids),
                tokenizer=self._tokenizer,
            )
            if end is not None:
                ends[index] = end
        return ends

    def _check_open(self) -> None:
        if self._is_stopping:
            raise UnavailableError("this pod is stopping; another pod may serve the request")

    def _token_bytes(self, token_id: int) -> bytes:
        return b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)
