"""Which requests live in the engine, and until when they may. Owned by the engine thread; knows no clock."""

from __future__ import annotations

from math import inf

from headstart.contract.request import GenerateSpec


class Deadlines:
    """Seconds are those of the clock that `GenerateSpec.deadline_s` is on."""

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}
        self._earliest_s = inf
        """No deadline is before this: most steps look at it and no further."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._deadlines

    @property
    def request_ids(self) -> list[str]:
        return list(self._deadlines)

    def add(self, spec: GenerateSpec) -> None:
        deadline_s = inf if spec.deadline_s is None else spec.deadline_s
        self._deadlines[spec.request_id] = deadline_s
        self._earliest_s = min(self._earliest_s, deadline_s)

    def drop(self, request_id: str) -> None:
        """The request ended. Idempotent."""
        self._deadlines.pop(request_id, None)

    def expired(self, now_s: float) -> list[str]:
        """Requests whose deadline has come, each told once: the caller ends and drops them."""
        if now_s < self._earliest_s:
            return []
        late = [request_id for request_id, deadline_s in self._deadlines.items() if deadline_s <= now_s]
        self._earliest_s = min((rest_s for rest_s in self._deadlines.values() if rest_s > now_s), default=inf)
        return late
