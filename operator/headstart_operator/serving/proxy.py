"""Runs a request on the fleet: admit, try, and when a pod fails try or continue on another, as one stream.

Before the client has got anything, a failure is retried on the next pod in rank; afterwards the request is continued
where its stream broke off. Fronts (gRPC, HTTP) call it and cannot tell how many pods took part. Knows nothing of how
pods are found or ranked. Holds no state but what belongs to one call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.hop import Hop
from headstart.edge.limits import Limits
from headstart.edge.names import in_metadata
from headstart.edge.operation import OPERATION_KEY
from headstart.telemetry.propagation import outgoing_headers
from opentelemetry.util.types import AttributeValue

from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.reading import Job, Reading
from headstart_operator.pods.fleet import Fleet
from headstart_operator.serving.attempt import Attempt, Beginning, Metadata, PodFailedError
from headstart_operator.serving.balancer import Balancer, Claim
from headstart_operator.serving.delivery import Delivery
from headstart_operator.serving.recorder import RouteRecorder

MAX_RETRIES = 2
MAX_CONTINUATIONS = 2

_PATIENCE_S = 2.0
"""How long a request that has lost its pod waits for another, or for the same one to be back."""

_PAUSE_S = 0.1
"""What a pod whose connection broke is given before it is tried again."""

POD_KEY = "headstart-pod"
CACHED_KEY = "headstart-cached-tokens"
PREDICTED_KEY = "headstart-predicted-cached-tokens"

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Call:
    """One call as its front sees it. `deadline_s` is on the monotonic clock; `trailers` are set when it ends.

    `tenant` is whom its key names; "" when no keys are asked for. `hop` is what calls of one span share.
    """

    deadline_s: float | None = None
    tenant: str = ""
    metadata: Metadata = ()
    trailers: Metadata = ()
    hop: Hop | None = None


class _Progress:
    """Where one request stands: what was delivered, who failed, how often more may be tried."""

    def __init__(self, job: Job, claim: Claim, started_s: float) -> None:
        self.job = job
        self.started_s = started_s
        self.ttft_s: float | None = None
        self.failed: set[PodKey] = set()
        self.lost: set[PodKey] = set()
        """Those of the failed that may be well: only the way to them broke."""
        self.num_attempts = 0
        self.num_retries = 0
        self.num_continuations = 0
        self.begin(claim)

    def begin(self, claim: Claim) -> None:
        """From nothing, on this pod."""
        self.original = claim
        self.delivery = Delivery(claim.reading.request)
        self.go_on(claim)

    def go_on(self, claim: Claim) -> None:
        """On this pod, with what was delivered so far."""
        self.claim = claim
        self.num_attempts += 1

    def fail(self, failure: PodFailedError) -> None:
        """The present pod failed."""
        key = self.claim.view.key
        self.failed.add(key)
        if failure.is_lost:
            self.lost.add(key)
        else:
            self.lost.discard(key)

    def attempt(self) -> Attempt:
        return Attempt(self.claim, self.delivery, beginning=self.beginning() if self.num_continuations else None)

    def last_words(self, attempt: Attempt) -> Iterator[bytes]:
        """One end for every choice that has none, when the client got anything at all or the pod said one."""
        yield from attempt.held()
        if not self.delivery.has_begun:
            return
        for finished in self.unfinished():
            yield pb.GenerateResponse(finished=finished).SerializeToString()

    def unfinished(self) -> Iterator[pb.Finished]:
        """An end for every choice whose own the client has not got, with what it did get."""
        emitted = self.delivery.emitted()
        for index in sorted(self.delivery.unfinished):
            usage = pb.Usage(
                prompt_tokens=self.original.num_prompt_tokens,
                cached_tokens=self.beginning().cached_tokens if self.delivery.has_begun else 0,
                completion_tokens=len(emitted[index]),
            )
            yield pb.Finished(
                index=index,
                finish_reason=pb.FINISH_REASON_CANCELLED,
                usage=usage,
                timings=pb.Timings(ttft_s=self.beginning().ttft_s),
                route=self.claim.route(),
            )

    def beginning(self) -> Beginning:
        """What the client's first token came with. Of use once there was one."""
        return Beginning(self.ttft_s or 0.0, self.original.predicted_cached_tokens)

    def span_attributes(self) -> dict[str, AttributeValue]:
        """The route; that of the last pod, when there were several."""
        claim = self.claim
        return {
            "gen_ai.response.id": self.job.request_id,
            "headstart.route.pod": claim.view.name,
            "headstart.route.predicted_cached_tokens": claim.predicted_cached_tokens,
            "headstart.route.matched_blocks": claim.ranked.matched_blocks,
            "headstart.route.candidates": claim.num_candidates,
            "headstart.route.attempts": self.num_attempts,
        }


class Proxy:
    """Implements `edge.completions.Completions` for the HTTP front, and `stream` for the gRPC one."""

    def __init__(
        self,
        fleet: Fleet,
        balancer: Balancer,
        *,
        recorder: RouteRecorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._balancer = balancer
        self._recorder = recorder
        self._clock = clock
        self._attempts: set[Attempt] = set()
        self._waits: set[asyncio.Timeout] = set()
        self._is_closing = False

    def close(self) -> None:
        """Every stream ends now, with an end for each choice of which the client has anything; none begins any more."""
        self._is_closing = True
        for attempt in self._attempts:
            attempt.stop()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0.0)

    @property
    def is_ready(self) -> bool:
        return self._fleet.is_ready

    async def models(self) -> Sequence[pb.Model]:
        return await self._balancer.models()

    async def limits(self) -> Limits:
        return await self._balancer.limits()

    async def generate(
        self,
        request: pb.GenerateRequest,
        *,
        deadline_s: float | None = None,
        tenant: str = "",
        hop: Hop | None = None,
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """As `stream`, with messages instead of their bytes."""
        call = Call(deadline_s=deadline_s, tenant=tenant, metadata=outgoing_headers(), hop=hop)
        async with aclosing(self.stream(request, call)) as messages:
            async for raw in messages:
                yield pb.GenerateResponse.FromString(raw)

    async def stream(self, request: pb.GenerateRequest, call: Call) -> AsyncGenerator[bytes]:
        """Encoded GenerateResponses. Raises HeadstartError; whoever stops early must `aclose` it."""
        started_s = self._clock()
        with self._recorder.call(request, deadline_s=call.deadline_s, hop=call.hop) as record:
            call.metadata = (*call.metadata, (OPERATION_KEY, record.operation))  # a pod gets token ids only
            job = await self._balancer.read(request, tenant=call.tenant)
            record.model, record.num_prompt_tokens = job.model, len(job.readings[0].request.token_ids.ids)
            with self._balancer.running(job):
                progress = _Progress(job, await self._balancer.admit(job, deadline_s=call.deadline_s), started_s)
                record.follow(route=progress.span_attributes, unfinished=progress.unfinished)
                async with aclosing(self._run(progress, call)) as messages:
                    async for raw in messages:
                        record.take(raw)
                        yield raw

    async def _run(self, progress: _Progress, call: Call) -> AsyncGenerator[bytes]:
        """One try after the other, until one ends well or no pod is left to try."""
        while True:
            attempt = progress.attempt()
            self._attempts.add(attempt)
            if self._is_closing:
                attempt.stop()
            try:
                async with aclosing(self._relay(attempt, progress, call)) as messages:
                    async for raw in messages:
                        yield raw
                return
            except PodFailedError as error:
                failure = error
            finally:
                self._attempts.discard(attempt)
                self._balancer.settle(progress.claim, attempt.usage)
                call.trailers = _trailers(progress, attempt)
            progress.fail(failure)
            if failure.is_closed:
                self._fleet.doubt(progress.claim.view.key)
            if not (failure.may_move and await self._move(progress, call)):
                for raw in progress.last_words(attempt):
                    yield raw
                raise failure.error

    async def _relay(self, attempt: Attempt, progress: _Progress, call: Call) -> AsyncGenerator[bytes]:
        timeout_s = None if call.deadline_s is None else max(0.0, call.deadline_s - self._clock())
        async with aclosing(attempt.relay(metadata=call.metadata, timeout_s=timeout_s)) as messages:
            async for raw in messages:
                if progress.ttft_s is None:
                    progress.ttft_s = self._clock() - progress.started_s
                yield raw

    async def _move(self, progress: _Progress, call: Call) -> bool:
        """Claim another pod after the present one failed. False when there is none or enough was tried."""
        if progress.delivery.has_begun:
            return progress.num_continuations < MAX_CONTINUATIONS and await self._continue(progress, call)
        if progress.num_retries == MAX_RETRIES:
            return False
        progress.num_retries += 1
        claim = await self._claim_next(progress, call)
        if claim is not None:
            progress.begin(claim)
        return claim is not None

    async def _continue(self, progress: _Progress, call: Call) -> bool:
        progress.num_continuations += 1
        original = progress.original.reading
        reading = await original.continued(
            progress.delivery.continuation(original.request), progress.claim.view.numerics_id
        )
        claim = await self._claim_next(progress, call, reading)
        if claim is not None:
            progress.go_on(claim)
            _LOGGER.info("request %s continues on pod %s", claim.request_id, claim.view.name)
        return claim is not None

    async def _claim_next(self, progress: _Progress, call: Call, reading: Reading | None = None) -> Claim | None:
        """Another pod at once. When there is none, the first that comes in a moment, one that was lost included."""

        def claim(failed: Collection[PodKey]) -> Claim | None:
            return self._balancer.reclaim(progress.job, attempt=progress.num_attempts, failed=failed, reading=reading)

        found = claim(progress.failed)
        if found is not None or self._is_closing or not (progress.lost or progress.delivery.has_begun):
            return found
        rest_s = _PATIENCE_S if call.deadline_s is None else min(_PATIENCE_S, call.deadline_s - self._clock())
        wait = asyncio.timeout(rest_s)
        self._waits.add(wait)
        try:
            async with wait:
                await asyncio.sleep(_PAUSE_S)
                while (found := claim(progress.failed - progress.lost)) is None:
                    await self._fleet.changed()
        except TimeoutError:
            return None
        finally:
            self._waits.discard(wait)
        return found


def _trailers(progress: _Progress, attempt: Attempt) -> Metadata:
    """The pod's own, and what was foretold of it. They say the same as the last `finished`."""
    claim = progress.claim
    passed = dict(attempt.trailers)
    passed.setdefault(POD_KEY, in_metadata(claim.view.name))
    if CACHED_KEY in passed and progress.num_continuations:
        passed[CACHED_KEY] = str(progress.beginning().cached_tokens)
    passed[PREDICTED_KEY] = str(claim.predicted_cached_tokens)
    return tuple(passed.items())
