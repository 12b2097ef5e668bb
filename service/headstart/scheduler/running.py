"""The requests that run, in the order of their admission. It knows order, not budgets. Owner: the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.core.request import RequestState, RequestStatus


class RunningSet:
    """`prefilling` are those that have sampled nothing since their admission."""

    def __init__(self) -> None:
        self._requests: list[RequestState] = []
        self.prefilling: dict[RequestState, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests)

    def add(self, request: RequestState) -> None:
        """A request was admitted."""
        request.status = RequestStatus.RUNNING
        request.is_prefilling = True
        self._requests.append(request)
        self.prefilling[request] = None

    def remove(self, request: RequestState) -> None:
        """A request ended or was preempted."""
        self._requests.remove(request)
        self.end_prefill(request)

    def end_prefill(self, request: RequestState) -> None:
        """A request has sampled: from now on it decodes."""
        request.is_prefilling = False
        self.prefilling.pop(request, None)

    def decodes_first(self) -> list[RequestState]:
        """A copy: the requests that decode, then those that prefill, each in the order of admission."""
        if not self.prefilling:
            return self._requests[:]
        return [*(request for request in self._requests if not request.is_prefilling), *self.prefilling]
