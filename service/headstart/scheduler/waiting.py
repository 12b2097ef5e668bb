"""The queue of requests that wait for admission, in the order in which they are tried.

It knows order and nothing of blocks or budgets. Smaller priority first, then requests that already ran (preempted),
then by arrival. Under fcfs every priority counts as 0. A request that waited `AGING_STEPS` steps goes before all
that have not, so that a steady stream of a higher class cannot starve it. Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator

from headstart.core.request import RequestState, RequestStatus

AGING_STEPS = 64
_AGED = -(1 << 40)  # below every int32 priority


def _key(request: RequestState) -> tuple[int, int, int]:
    return request.queue_key


class WaitingQueue:
    """A sorted list: appends, pops at the front and removals are binary searches plus a memory move."""

    def __init__(self, *, by_priority: bool) -> None:
        self.is_by_priority = by_priority
        self._queue: list[RequestState] = []
        self._by_age: deque[tuple[int, RequestState]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._queue)

    def __getitem__(self, index: int) -> RequestState:
        return self._queue[index]

    def rank(self, request: RequestState) -> int:
        """The priority that counts: of two requests the one with the smaller rank goes first."""
        if not self.is_by_priority:
            return 0
        return _AGED if request.is_aged else request.spec.priority

    def push(self, request: RequestState, *, step: int) -> None:
        """Put a new or a preempted request in its place; `step` is when its wait begins."""
        request.status = RequestStatus.WAITING
        self._insert(request)
        request.waiting_since = step
        if self.is_by_priority:
            self._by_age.append((step, request))

    def remove(self, request: RequestState) -> None:
        """Take a waiting request out, wherever it stands."""
        del self._queue[bisect_left(self._queue, request.queue_key, key=_key)]

    def promote(self, *, step: int) -> None:
        """Move requests to the front that have been waiting since `AGING_STEPS` steps before `step`."""
        while self._by_age and self._by_age[0][0] <= step - AGING_STEPS:
            since, request = self._by_age.popleft()
            is_same_wait = request.status is RequestStatus.WAITING and request.waiting_since == since
            if is_same_wait and not request.is_aged:
                del self._queue[bisect_left(self._queue, request.queue_key, key=_key)]
                request.is_aged = True
                self._insert(request)

    def _insert(self, request: RequestState) -> None:
        request.queue_key = (self.rank(request), 0 if request.num_preemptions else 1, request.arrival)
        insort(self._queue, request, key=_key)
