"""The queue in front of the pods: who waits, who goes next, and who is sent away.

A request goes straight through while nobody waits for its model and a pod has room. Else it stands in its model's line,
where tenants take turns and, within a tenant, the earliest deadline goes first; one without a deadline counts as due a
minute after it came, so it is never passed for ever. Knows nothing of pods: a claim is made by the caller's function,
which is asked again whenever room may have come. Owner of its state: the operator's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headstart.errors import DeadlineExceededError, HeadstartError, ResourceExhaustedError, UnavailableError

PATIENCE_S = 60.0
"""When a request without a deadline counts as due."""

RECHECK_S = 0.05
"""How often a line is tried again without being woken: pods come, go and drain on their own."""

_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much may wait for a pod."""

    max_requests: int = 4096
    max_tokens: int = 16_000_000
    max_requests_per_tenant: int = 4096


Claim = TypeVar("Claim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Who asks. `deadline_s` is on the queue's clock; `num_tokens` counts the prompt; `limits` are its line's own."""

    line: str
    tenant: str
    num_tokens: int
    deadline_s: float | None = None
    limits: QueueLimits | None = None


@dataclass(slots=True)
class _Waiting:
    """How much waits, in one line or in all of them."""

    num_tokens: int = 0
    tenants: Counter[str] = field(default_factory=Counter)

    def count(self, arrival: Arrival, change: int) -> None:
        self.num_tokens += change * arrival.num_tokens
        self.tenants[arrival.tenant] += change
        if not self.tenants[arrival.tenant]:
            del self.tenants[arrival.tenant]

    def check(self, arrival: Arrival, limits: QueueLimits) -> None:
        """Raises ResourceExhaustedError or UnavailableError when one more is too much."""
        if self.tenants[arrival.tenant] >= limits.max_requests_per_tenant:
            raise ResourceExhaustedError("too many requests of this tenant wait for a pod; try again later")
        num_tokens = self.num_tokens + arrival.num_tokens
        if self.tenants.total() >= limits.max_requests or num_tokens > limits.max_tokens:
            raise UnavailableError("too many requests wait for a pod", retry_after_s=_RETRY_AFTER_S)


@dataclass(slots=True, kw_only=True, eq=False)
class _Ticket(Generic[Claim]):
    arrival: Arrival
    try_claim: Callable[[], Claim | None]
    future: asyncio.Future[Claim]


@dataclass(slots=True)
class _Line(Generic[Claim]):
    """Tenants in turn; each has a heap of (due time, number, ticket)."""

    waiting: _Waiting = field(default_factory=_Waiting)
    tenants: OrderedDict[str, list[tuple[float, int, _Ticket[Claim]]]] = field(default_factory=OrderedDict)

    def push(self, due_s: float, number: int, ticket: _Ticket[Claim]) -> None:
        heapq.heappush(self.tenants.setdefault(ticket.arrival.tenant, []), (due_s, number, ticket))

    def head(self) -> _Ticket[Claim] | None:
        """The next to go; those that left are dropped on the way."""
        while self.tenants:
            tenant, heap = next(iter(self.tenants.items()))
            while heap and heap[0][2].future.done():
                heapq.heappop(heap)
            if heap:
                return heap[0][2]
            del self.tenants[tenant]
        return None

    def pop(self) -> None:
        """Take the head out; its tenant goes to the end of the turn."""
        tenant, heap = self.tenants.popitem(last=False)
        heapq.heappop(heap)
        if heap:
            self.tenants[tenant] = heap


class Admission(Generic[Claim]):
    """Bounded lines, one per model. `abandon` takes back a claim whose request left as it was granted."""

    def __init__(
        self,
        abandon: Callable[[Claim], None],
        *,
        limits: QueueLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._abandon = abandon
        self._limits = limits
        self._clock = clock
        self._lines: dict[str, _Line[Claim]] = {}
        self._numbers = itertools.count()
        self._waiting = _Waiting()
        self._rechecks: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        return self._waiting.tenants.total()

    async def admit(self, arrival: Arrival, try_claim: Callable[[], Claim | None]) -> Claim:
        """Wait for `try_claim` to give something, in turn.

        Raises what `try_claim` raises, UnavailableError when the queue is full, ResourceExhaustedError when the
        tenant's part of it is, and DeadlineExceededError when the deadline passes first.
        """
        line = self._lines.setdefault(arrival.line, _Line())
        if line.head() is None:
            claim = try_claim()
            if claim is not None:
                return claim
        self._waiting.check(arrival, self._limits)
        if arrival.limits is not None:
            line.waiting.check(arrival, arrival.limits)
        ticket = _Ticket(arrival=arrival, try_claim=try_claim, future=asyncio.get_running_loop().create_future())
        due_s = self._clock() + PATIENCE_S if arrival.deadline_s is None else arrival.deadline_s
        line.push(due_s, next(self._numbers), ticket)
        for waiting in (self._waiting, line.waiting):
            waiting.count(arrival, 1)
        try:
            return await self._wait(ticket)
        finally:
            for waiting in (self._waiting, line.waiting):
                waiting.count(arrival, -1)

    def wake(self) -> None:
        """Room may have come: serve every line until its head finds none."""
        for name, line in list(self._lines.items()):
            self._serve(line)
            if not line.tenants:
                del self._lines[name]

    async def close(self) -> None:
        """Send everyone away."""
        for line in self._lines.values():
            while (ticket := line.head()) is not None:
                line.pop()
                ticket.future.set_exception(UnavailableError("the operator is stopping", retry_after_s=_RETRY_AFTER_S))
        if self._rechecks is not None:
            self._rechecks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._rechecks

    async def _wait(self, ticket: _Ticket[Claim]) -> Claim:
        if self._rechecks is None or self._rechecks.done():
            self._rechecks = asyncio.create_task(self._recheck())
        deadline_s = ticket.arrival.deadline_s
        remaining_s = None if deadline_s is None else max(0.0, deadline_s - self._clock())
        future = ticket.future
        try:
            async with asyncio.timeout(remaining_s):
                return await future
        except (asyncio.CancelledError, TimeoutError) as error:
            # The claim may have been granted in the same turn of the loop in which its request left.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._abandon(future.result())
            future.cancel()
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError("the deadline passed while the request waited for a pod") from None
            raise

    def _serve(self, line: _Line[Claim]) -> None:
        while (ticket := line.head()) is not None:
            try:
                claim = ticket.try_claim()
            except HeadstartError as error:
                line.pop()
                ticket.future.set_exception(error)
                continue
            if claim is None:
                return
            line.pop()
            ticket.future.set_result(claim)

    async def _recheck(self) -> None:
        while self.num_waiting:
            await asyncio.sleep(RECHECK_S)
            self.wake()
