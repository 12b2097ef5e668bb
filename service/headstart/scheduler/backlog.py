"""How many prompt tokens are still to be computed, those that several requests share counted once.

Routers, callers that are asked to come back and deadlines are told by this number, so it must not count work that a hit
will save: a queue of siblings is one prefix and their tails. A request's share is settled when it enters: what neither
the cache nor an earlier request of the queue covers. Evictions and leaders that are cancelled make it too small, never
too large. Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headstart.cache.manager import BlockManager
from headstart.contract.prefix import hit_length, reads_cache
from headstart.core.request import RequestState


class _Share(NamedTuple):
    num_tokens: int
    hashes: list[bytes]


class Backlog:
    """Holds a request from its wait for admission until its prompt is computed."""

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._shares: dict[str, _Share] = {}
        self._promised: set[bytes] = set()
        self._num_tokens = 0

    def enter(self, request: RequestState) -> None:
        """A request begins to wait: a new one, or one that was preempted."""
        self.leave(request)
        hashes = self._manager.hash_all(request.table, request.tokens)
        num_covered = 0
        if reads_cache(request.spec.prompt_logprobs):
            num_covered = next((i for i, digest in enumerate(hashes) if not self._is_covered(digest)), len(hashes))
        num_tokens = len(request.tokens)
        share = _Share(
            num_tokens - hit_length(num_covered, num_tokens, self._manager.block_size),
            [digest for digest in hashes[num_covered:] if digest not in self._promised],
        )
        self._shares[request.request_id] = share
        self._promised.update(share.hashes)
        self._num_tokens += share.num_tokens

    def leave(self, request: RequestState) -> None:
        """Its prompt is computed, or it ended. Idempotent."""
        share = self._shares.pop(request.request_id, None)
        if share is not None:
            self._promised.difference_update(share.hashes)
            self._num_tokens -= share.num_tokens

    def settle_again(self, waiting: Iterable[RequestState]) -> None:
        """The cache was cleared: what they hoped to find there is gone."""
        for request in waiting:
            self.enter(request)

    def num_tokens(self, prefilling: Iterable[RequestState]) -> int:
        """All of it. Of `prefilling` only what is left counts."""
        return self._num_tokens - sum(
            max(0, self._shares[request.request_id].num_tokens - _rest(request)) for request in prefilling
        )

    def num_tokens_of(self, requests: Iterable[RequestState]) -> int:
        """What these, each waiting or prefilling, have still to compute."""
        return sum(min(self._shares[request.request_id].num_tokens, _rest(request)) for request in requests)

    def _is_covered(self, digest: bytes) -> bool:
        return digest in self._promised or self._manager.pool.find(digest) is not None


def _rest(request: RequestState) -> int:
    return len(request.tokens) - request.num_computed
