"""Our own requests that run on pods: what they will do there that the pods' loads do not show yet.

A placement's work counts until the pod says that it has taken the request in; its blocks count until they are stored,
until it ends, or for 30 s. Knows nothing of streams or costs. Owner and only writer: the operator's event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.index import PrefixIndex

BLOCKS_EXPIRE_S = 30.0


@dataclass(slots=True)
class PodPlacements:
    """Sums over one pod's placements. `tokens`, `blocks` and `num_pending` are of those it has not taken in."""

    num_in_flight: int = 0
    num_pending: int = 0
    tokens: int = 0
    blocks: int = 0


@dataclass(slots=True, eq=False)
class _Placement:
    key: PodKey
    hashes: Sequence[int]
    tokens: int
    blocks: int
    placed_s: float
    is_pending: bool = True
    has_blocks: bool = True


@dataclass(slots=True)
class Placements:
    """All placements in flight, by the request id that the pod sees. `clock` is in seconds."""

    index: PrefixIndex
    clock: Callable[[], float]
    _placed: dict[str, _Placement] = field(default_factory=dict)
    _pods: dict[PodKey, PodPlacements] = field(default_factory=dict)
    _ages: deque[_Placement] = field(default_factory=deque)
    _none: PodPlacements = field(default_factory=PodPlacements)

    def add(self, request_id: str, key: PodKey, *, hashes: Sequence[int], tokens: int, blocks: int) -> None:
        """`hashes` are of the blocks to compute, `tokens` the prefill left. Raises ValueError for an id in use."""
        if request_id in self._placed:
            raise ValueError(f"request {request_id} is already placed")
        placement = _Placement(key, hashes, tokens, blocks, self.clock())
        self._placed[request_id] = placement
        self._ages.append(placement)
        self.index.reserve(key, hashes)
        pod = self._pods.setdefault(key, PodPlacements())
        pod.num_in_flight += 1
        pod.num_pending += 1
        pod.tokens += tokens
        pod.blocks += blocks

    def accept(self, request_id: str) -> None:
        """The pod has it: its load counts the work from now on. Unknown ids are others' requests."""
        placement = self._placed.get(request_id)
        if placement is not None:
            self._confirm(placement)

    def end(self, request_id: str) -> None:
        """It ended, however. Unknown ids are ignored."""
        placement = self._placed.pop(request_id, None)
        if placement is None:
            return
        self._confirm(placement)
        self._release(placement)
        pod = self._pods[placement.key]
        pod.num_in_flight -= 1
        if pod.num_in_flight == 0:
            del self._pods[placement.key]

    def expire(self) -> None:
        """Forget the blocks of placements that are too old to be about to store them."""
        oldest_s = self.clock() - BLOCKS_EXPIRE_S
        while self._ages and (self._ages[0].placed_s < oldest_s or not self._ages[0].has_blocks):
            self._release(self._ages.popleft())

    def of(self, key: PodKey) -> PodPlacements:
        """The sums of one pod; not to be changed."""
        return self._pods.get(key) or self._none

    def _confirm(self, placement: _Placement) -> None:
        if placement.is_pending:
            placement.is_pending = False
            pod = self._pods[placement.key]
            pod.num_pending -= 1
            pod.tokens -= placement.tokens
            pod.blocks -= placement.blocks

    def _release(self, placement: _Placement) -> None:
        if placement.has_blocks:
            placement.has_blocks = False
            self.index.release(placement.key, placement.hashes)
