"""The asyncio side of the engine: what the server's event loop asks of the engine thread, and hears from it.

Every method runs on the event loop that called `start`. It owns the streams, the mirror of the prefix cache and the
count of what waits; it never touches the scheduler, the pool or the runner. It knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from headstart.cache.log import CacheMirror
from headstart.contract.request import GenerateSpec
from headstart.core.step import FinishReason
from headstart.edge.specs import caller_request_id
from headstart.engine.loop import EngineLoop
from headstart.engine.messages import Add, Cancel, EngineStats, LoadRecord, Reset, StepResult, Stop
from headstart.engine.queue_limit import QueueLimit
from headstart.engine.stream import RequestStream
from headstart.engine.subscription import Subscription
from headstart.engine.trace import StepTrace
from headstart.errors import AlreadyExistsError, HeadstartError, InternalError, UnavailableError
from headstart.scheduler.stats import SchedulerStats

_T = TypeVar("_T")
_NO_STATS = SchedulerStats(**dict.fromkeys(SchedulerStats._fields, 0))
_MAX_STEP_TIMES = 10_000
_DEAD = "the engine of this pod broke down, another pod may serve the request"
_LOADING = "this pod is still loading its model, another pod may serve the request"
_STOPPED = "this pod has stopped, another pod may serve the request"
_DRAINING = "this pod is draining, another pod may serve the request"


class EngineHandle:
    """One engine thread, seen from the event loop.

    `event_buffer`: sealed batches that the mirror keeps. `max_traces`: step traces kept, when the loop has a tracer.
    """

    def __init__(
        self,
        loop: EngineLoop,
        *,
        max_queued_requests: int,
        max_queued_tokens: int,
        event_buffer: int = 10_000,
        max_traces: int = 1_000,
    ) -> None:
        self.mirror = CacheMirror(loop.epoch, capacity=event_buffer)
        self.traces: deque[StepTrace] = deque(maxlen=max_traces)
        self.step_times: deque[tuple[float, int]] = deque(maxlen=_MAX_STEP_TIMES)
        """Seconds and tokens of the steps that nobody has taken yet; the oldest go when nobody does."""
        self.is_draining = False
        self._loop = loop
        self._queue = QueueLimit(max_requests=max_queued_requests, max_tokens=max_queued_tokens)
        self._streams: dict[str, RequestStream] = {}
        self._num_choices: Counter[str] = Counter()
        self._answers: dict[str, asyncio.Future[None]] = {}
        self._resets: dict[int, asyncio.Future[int]] = {}
        self._num_resets = 0
        self._subscriptions: set[Subscription] = set()
        self._load = LoadRecord(0, 0, 0, 0, (), 0, 0.0, 0.0)
        self._stats = _NO_STATS
        self._num_decoder_faults = 0
        self._leaked_blocks = 0
        self._is_warm = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._exit: asyncio.Future[bool] | None = None

    # -- life

    async def start(self, *, warm_up: GenerateSpec | None = None) -> None:
        """Start the engine thread; with `warm_up`, run that request to its end before the engine is ready.

        Raises InternalError when the warm-up fails. One that ends within a block leaves nothing in the cache.
        """
        event_loop = asyncio.get_running_loop()
        self._exit = event_loop.create_future()

        def post(call: Callable[..., None], value: object) -> None:
            # The event loop is closed only when the process ends without `close`: nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                event_loop.call_soon_threadsafe(call, value)

        self._loop.start(lambda result: post(self._deliver, result), lambda is_clean: post(self._leave, is_clean))
        if warm_up is not None:
            async for chunk in await self.submit(warm_up):
                if chunk.finish is not None and chunk.finish.reason is FinishReason.ERROR:
                    raise InternalError(f"the warm-up failed: {chunk.finish.error}")
        self._is_warm = True

    async def drain(self) -> None:
        """Refuse new requests and return when the accepted ones have ended. Cancelling the wait does not undo it."""
        self.is_draining = True
        self._wake_subscriptions(())
        await self._is_idle.wait()

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Cancel what is left and end the thread.

        A step that outlasts `timeout_s` is left behind, its thread is a daemon; the streams end here all the same.
        """
        self.is_draining = True
        if self._exit is None:
            return
        self._loop.send(Stop())
        done, _ = await asyncio.wait([self._exit], timeout=timeout_s)
        if done:
            await asyncio.to_thread(self._loop.join, timeout_s)
        else:
            self._end_all(UnavailableError(_STOPPED))

    async def wait_exit(self) -> bool:
        """Return when the thread has ended: True after `close`, False when it broke and the process should end."""
        if self._exit is None:
            raise RuntimeError("the engine was not started")
        return await asyncio.shield(self._exit)

    @property
    def is_alive(self) -> bool:
        """The thread runs; whether it advances is told by `step_age_s`."""
        return self._loop.is_alive

    @property
    def is_ready(self) -> bool:
        return self.is_alive and self._is_warm and not self.is_draining

    # -- requests

    async def submit(self, spec: GenerateSpec) -> RequestStream:
        """Queue one request. Raises InvalidRequestError, AlreadyExistsError or UnavailableError."""
        (stream,) = await self.submit_all((spec,))
        return stream

    async def submit_all(self, specs: Sequence[GenerateSpec]) -> list[RequestStream]:
        """Queue the choices of one request together, so that they share their prefix in one step: all or none."""
        self._refuse_unless_open(specs)
        event_loop = asyncio.get_running_loop()
        answers = []
        for spec in specs:
            self._streams[spec.request_id] = RequestStream(spec.request_id, self.cancel)
            self._num_choices[caller_request_id(spec.request_id)] += 1
            self._queue.enter(spec)
            answer = event_loop.create_future()
            answers.append(answer)
            self._answers[spec.request_id] = answer
            self._loop.send(Add(spec))
        self._is_idle.clear()
        streams = [self._streams[spec.request_id] for spec in specs]
        try:
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        except asyncio.CancelledError:
            await _close_all(streams)
            raise
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await _close_all(streams)
                raise outcome
        return streams

    def cancel(self, request_id: str) -> None:
        """End a request within one step; its stream gets a last chunk that says so. Unknown ids are ignored."""
        if request_id in self._streams:
            self._loop.send(Cancel(request_id))

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine has not ended yet, closed streams among them."""
        return len(self._streams)

    @property
    def num_queued(self) -> int:
        """Of those, the ones that have not had their first row in a step."""
        return len(self._queue)

    # -- cache and state

    async def reset(self, *, force: bool) -> int:
        """Drop the prefix cache and say how many hashes went. Raises FailedPreconditionError while blocks are in use.

        With `force` everything that runs is preempted instead. The mirror shows it when this returns.
        """
        if not self.is_alive:
            raise UnavailableError(_LOADING if self._exit is None else _DEAD)
        self._num_resets += 1
        ticket = self._num_resets
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._resets[ticket] = answer
        self._loop.send(Reset(ticket, force))
        try:
            return await answer
        finally:
            self._resets.pop(ticket, None)

    @property
    def load(self) -> LoadRecord:
        """The last published record, with the age of the running step as of now."""
        return self._load._replace(step_age_s=self.step_age_s, draining=self.is_draining)

    @property
    def step_age_s(self) -> float:
        """Seconds since the step in progress started; 0.0 while idle. While work is stuck it only grows."""
        started_s = self._loop.step_started_s
        return max(0.0, self._loop.clock() - started_s) if started_s else 0.0

    @property
    def stats(self) -> EngineStats:
        """Counters as of the last publication."""
        counts = self._stats._asdict()
        counts["contained_faults"] += self._num_decoder_faults
        return EngineStats(**counts, leaked_blocks=self._leaked_blocks, last_step_age_s=self.step_age_s)

    def subscribe(self) -> Subscription:
        """Be woken at each publication, until the subscription is closed."""
        subscription = Subscription(self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    # -- from the engine thread, by way of the event loop

    def _deliver(self, result: StepResult) -> None:
        for batch in result.batches:
            self.mirror.apply(batch)
        self._load, self._stats = result.load, result.stats
        self._num_decoder_faults, self._leaked_blocks = result.num_decoder_faults, result.leaked_blocks
        if result.trace is not None:
            self.traces.append(result.trace)
        if result.step_time is not None:
            self.step_times.append(result.step_time)
        for request_id in result.load.accepted:
            _answer(self._answers.pop(request_id, None), None)
        for request_id, error in result.refused:
            _answer(self._answers.pop(request_id, None), error)
            self._forget(request_id)
        for ticket, outcome in result.resets:
            _answer(self._resets.get(ticket), outcome)
        for request_id in result.started:
            self._queue.leave(request_id)
        for chunk in result.chunks:
            # A close that timed out has ended the streams of a step that comes in late.
            if chunk.request_id in self._streams:
                self._streams[chunk.request_id].push(chunk)
            if chunk.finish is not None:
                self._forget(chunk.request_id)
        self._wake_subscriptions(result.load.accepted)

    def _leave(self, is_clean: bool) -> None:
        self._end_all(UnavailableError(_STOPPED if is_clean else _DEAD))
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(is_clean)

    # -- helpers

    def _refuse_unless_open(self, specs: Sequence[GenerateSpec]) -> None:
        if self._exit is None:
            raise UnavailableError(_LOADING)
        if not self.is_alive:
            raise UnavailableError(_STOPPED if self.is_draining else _DEAD)
        if self.is_draining:
            raise UnavailableError(_DRAINING)
        seen: set[str] = set()
        for spec in specs:
            name = caller_request_id(spec.request_id)
            if self._num_choices[name] or spec.request_id in seen:
                raise AlreadyExistsError(f"request_id: {name!r} is still running")
            seen.add(spec.request_id)
        self._queue.check(specs, self._load)

    def _forget(self, request_id: str) -> None:
        """The one place where a request stops counting."""
        if self._streams.pop(request_id, None) is not None:
            name = caller_request_id(request_id)
            self._num_choices[name] -= 1
            if not self._num_choices[name]:
                del self._num_choices[name]
        self._queue.leave(request_id)
        if not self._streams:
            self._is_idle.set()

    def _end_all(self, error: HeadstartError) -> None:
        for answer in self._answers.values():
            _answer(answer, error)
        self._answers.clear()
        for reset in self._resets.values():
            _answer(reset, error)
        for request_id, stream in list(self._streams.items()):
            stream.fail(error)
            self._forget(request_id)
        self._wake_subscriptions(())

    def _wake_subscriptions(self, accepted: Sequence[str]) -> None:
        for subscription in self._subscriptions:
            subscription.wake(accepted)


def _answer(future: asyncio.Future[_T] | None, outcome: _T | HeadstartError) -> None:
    """Settle a future unless whoever asked has gone."""
    if future is None or future.done():
        return
    if isinstance(outcome, HeadstartError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def _close_all(streams: Sequence[RequestStream]) -> None:
    for stream in streams:
        await stream.aclose()
