"""One try of a request on one pod: its messages pass through as bytes, and only a choice's end is looked into.

An end that says `cancelled` or `error` is held back: whether the client sees it is decided by the status that follows,
for the request may go on elsewhere. Knows nothing of other tries or of how the pod was chosen. Owner of its state: the
request's handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

import grpc
import grpc.aio
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.completions import error_of
from headstart.edge.interceptor import PUSHBACK_KEY
from headstart.errors import HeadstartError, UnavailableError

from headstart_operator.pods.connection import REFUSALS
from headstart_operator.serving.balancer import Claim
from headstart_operator.serving.delivery import Delivery, is_finished

METHOD = "/headstart.v1.Inference/Generate"
EPOCH_KEY = "headstart-epoch"

_PASSED_TRAILERS = "headstart-"
_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN})
"""What gRPC says when the way to the pod broke. CANCELLED did not come from us; a pod itself never says UNKNOWN."""

_LOGGER = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str | bytes], ...]


class PodFailedError(Exception):
    """The try is over without all choices' ends. `error` is for the client if nobody else takes the request.

    Another pod may do better when it `may_move`, and the same one when only the way to it `is_lost`. A pod that
    `is_closed` does not let the router in.
    """

    def __init__(
        self, error: HeadstartError, *, may_move: bool, is_lost: bool = False, is_closed: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_move = may_move
        self.is_lost = is_lost
        self.is_closed = is_closed


class Beginning(NamedTuple):
    """What a continuation cannot know by itself: how the stream began, on another pod.

    `cached_tokens` is what was foretold of that pod: it did not live to tell.
    """

    ttft_s: float
    cached_tokens: int


class Attempt:
    """`beginning` is set in a continuation. The claim's request gets the claim's id."""

    def __init__(self, claim: Claim, delivery: Delivery, *, beginning: Beginning | None = None) -> None:
        self._claim = claim
        self._delivery = delivery
        self._beginning = beginning
        request = claim.reading.request
        self._held: list[pb.Finished] = []
        reports_prompt = request.echo_token_ids or request.HasField("prompt_logprobs")
        # Reports on the prompt are kept back until choice 0 has a token, so that a client gets all or none of them;
        # with them all that comes meanwhile, ends too: what came later must not overtake it.
        self._prologue: list[bytes] | None = [] if reports_prompt else None
        self._call: Any = None
        self._is_stopped = False
        self.usage: pb.Usage | None = None
        self.trailers: Metadata = ()

    def stop(self) -> None:
        """End it now, for the operator stops: whoever reads it gets a PodFailedError."""
        self._is_stopped = True
        if self._call is not None:
            self._call.cancel()

    async def relay(self, *, metadata: Metadata, timeout_s: float | None) -> AsyncGenerator[bytes]:
        """Messages for the client, which are noted as delivered. Raises PodFailedError."""
        delivery = self._delivery
        async for raw in self._read(metadata, timeout_s):
            if is_finished(raw):
                for message in self._take_finished(raw):
                    yield message
            elif self._prologue is not None:
                for message in self._take_report(raw, self._prologue):
                    yield message
            else:
                delivery.add_chunk(raw)
                yield raw
        if delivery.unfinished:
            raise PodFailedError(UnavailableError("the pod ended the stream too early"), may_move=True)

    def held(self) -> Iterator[bytes]:
        """The ends that were held back, for a client that gets no better ones; before them what came before."""
        if self._held:
            yield from self._end_prologue()
        for finished in self._held:
            if finished.index in self._delivery.unfinished:
                yield self._finish(finished)

    async def _read(self, metadata: Metadata, timeout_s: float | None) -> AsyncGenerator[bytes]:
        view = self._claim.view
        assert view.channel is not None
        if self._is_stopped:
            raise _stopping()
        # Of a field that comes twice the last one counts, so the request's bytes need not be written anew.
        own_id = pb.GenerateRequest(request_id=self._claim.request_id).SerializeToString()
        open_call: Any = view.channel.unary_stream(METHOD)
        self._call = call = open_call(
            self._claim.reading.encoded + own_id,
            timeout=timeout_s,
            metadata=(*metadata, (EPOCH_KEY, view.key.epoch)),
        )
        watch = asyncio.create_task(_cancel_when_set(view.silence, call)) if view.silence else None
        try:
            async for raw in call:
                yield raw
            self._keep_trailers(await call.trailing_metadata())
        except grpc.aio.AioRpcError as error:
            self._keep_trailers(error.trailing_metadata())
            raise _failure(view.name, error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            if self._is_stopped:
                raise _stopping() from None
            if view.silence is None or not view.silence.is_set():
                raise
            silent = UnavailableError("the pod has gone silent")
            raise PodFailedError(silent, may_move=True, is_lost=True) from None
        finally:
            if watch is not None:
                watch.cancel()
            call.cancel()

    def _take_report(self, raw: bytes, prologue: list[bytes]) -> Iterator[bytes]:
        prologue.append(raw)
        chunk = pb.GenerateResponse.FromString(raw).chunk
        if chunk.index == 0 and chunk.token_ids:
            yield from self._end_prologue()

    def _take_finished(self, raw: bytes) -> Iterator[bytes]:
        finished = pb.GenerateResponse.FromString(raw).finished
        if finished.index not in self._delivery.unfinished:
            return  # the continuation names this choice, and the client has its end
        if finished.finish_reason in (pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_ERROR):
            self._held.append(finished)
            return
        if finished.index == 0:
            yield from self._end_prologue()
            self.usage = finished.usage
        elif self._prologue is not None:
            self._prologue.append(raw)
            return
        yield self._finish(finished)

    def _end_prologue(self) -> Iterator[bytes]:
        kept, self._prologue = self._prologue or (), None
        for raw in kept:
            if is_finished(raw):
                yield self._finish(pb.GenerateResponse.FromString(raw).finished)
            else:
                self._delivery.add_chunk(raw)
                yield raw

    def _finish(self, finished: pb.Finished) -> bytes:
        """A choice's end with the receipt of the route."""
        self._delivery.add_finished(finished.index)
        finished.route.CopyFrom(self._claim.route())
        if self._beginning is not None:
            finished.timings.ttft_s = self._beginning.ttft_s
            finished.usage.cached_tokens = self._beginning.cached_tokens
        return pb.GenerateResponse(finished=finished).SerializeToString()

    def _keep_trailers(self, trailers: Any) -> None:
        self.trailers = tuple((key, value) for key, value in trailers or () if key.startswith(_PASSED_TRAILERS))


def _failure(pod: str, error: grpc.aio.AioRpcError) -> PodFailedError:
    """What the pod said, or that it could not say anything: how connections break is for the log."""
    code = error.code()
    if code in REFUSALS:
        refused = UnavailableError("the pod does not let the router in; the router's log says more")
        return PodFailedError(refused, may_move=True, is_closed=True)
    if code in _BROKEN and PUSHBACK_KEY not in dict(error.trailing_metadata() or ()):
        _LOGGER.info("pod %s: a call broke off (%s): %s", pod, code.name, error.details())
        return PodFailedError(UnavailableError("the pod could not be reached"), may_move=True, is_lost=True)
    return PodFailedError(error_of(error), may_move=code is grpc.StatusCode.UNAVAILABLE)


def _stopping() -> PodFailedError:
    return PodFailedError(UnavailableError("the operator is stopping", retry_after_s=1.0), may_move=False)


async def _cancel_when_set(silence: asyncio.Event, call: Any) -> None:
    await silence.wait()
    call.cancel()
