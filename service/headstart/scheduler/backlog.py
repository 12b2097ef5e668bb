"""How many prompt tokens are still to be computed, those that several requests share counted once.

Routers and callers that are asked to come back are told by this number, so it must not count work that a hit will save:
a queue of siblings is one prefix and their tails. It is the full blocks that somebody in the queue is to compute, each
until anybody has scheduled it, and what each request has besides full blocks. Blocks that are evicted meanwhile and
leaders that are cancelled make it too small; it is too large by less than a block for each running prefill, which may
stand in the middle of one that another promised. Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.cache.manager import BlockManager
from headstart.contract.prefix import hit_length, reads_cache
from headstart.core.request import RequestState
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.running import RunningSet
from headstart.scheduler.waiting import WaitingQueue


class _Share:
    """What one request is to compute: blocks that it promised and are not scheduled yet, and `rest` tokens besides."""

    __slots__ = ("hashes", "num_blocks", "rest")

    def __init__(self, hashes: list[bytes], rest: int) -> None:
        self.hashes = hashes
        self.num_blocks = len(hashes)
        self.rest = rest


class Backlog:
    """Holds a request from its wait for admission until its prompt is computed."""

    def __init__(
        self, manager: BlockManager, waiting: WaitingQueue, running: RunningSet, limits: SchedulerLimits
    ) -> None:
        self._manager = manager
        self._waiting = waiting
        self._running = running
        self._limits = limits
        self._shares: dict[str, _Share] = {}
        self._promised: dict[bytes, _Share] = {}
        self._rest = 0

    def enter(self, request: RequestState) -> None:
        """A request begins to wait: a new one, or one that was preempted."""
        self.leave(request)
        size, num_tokens = self._manager.block_size, len(request.tokens)
        hashes = self._manager.hash_all(request.table, request.tokens)
        promised: list[bytes] = []
        rest = num_tokens
        if reads_cache(request.spec.prompt_logprobs):
            promised = [digest for digest in hashes if not self._is_covered(digest)]
            has_last = bool(hashes) and (not promised or promised[-1] != hashes[-1])
            rest -= hit_length(len(hashes), num_tokens, size) if has_last else len(hashes) * size
        share = _Share(promised, rest)
        self._shares[request.request_id] = share
        self._promised.update(dict.fromkeys(promised, share))
        self._rest += rest

    def leave(self, request: RequestState) -> None:
        """Its prompt is computed, or it ended. Idempotent."""
        share = self._shares.pop(request.request_id, None)
        if share is not None:
            self._rest -= share.rest
            for digest in share.hashes:
                if self._promised.get(digest) is share:
                    del self._promised[digest]

    def note_scheduled(self, hashes: Sequence[bytes]) -> None:
        """These blocks are computed in this step, by whomever."""
        for digest in hashes:
            share = self._promised.pop(digest, None)
            if share is not None:
                share.num_blocks -= 1

    def settle_again(self) -> None:
        """The cache was cleared: what those who wait hoped to find there is gone."""
        for request in self._waiting:
            self.enter(request)

    @property
    def num_tokens(self) -> int:
        """All of it. Of a running prefill no more than what is left counts."""
        total = len(self._promised) * self._manager.block_size + self._rest
        return total - sum(max(0, self._share_of(request) - _left(request)) for request in self._running.prefilling)

    def num_tokens_before(self, request: RequestState) -> int:
        """Fewest prompt tokens that are computed before the first token of a request that waits, whatever comes.

        A prompt within the cap passes by longer ones, but not by shorter ones that wait before it. A longer one starts
        when all before it are done but the partial prefills that may run beside it.
        """
        rank = self._waiting.rank
        own, bound = self._tokens_of(request), rank(request)
        waiting = [self._tokens_of(other) for other in self._waiting if other is not request and rank(other) <= bound]
        if own <= self._limits.prefill_cap:
            return own + sum(tokens for tokens in waiting if tokens <= own)
        prefilling = [self._tokens_of(other) for other in self._running.prefilling if rank(other) <= bound]
        others = sorted(waiting + prefilling)
        return own + sum(others[: max(0, len(others) - self._limits.max_partial_prefills + 1)])

    def _tokens_of(self, request: RequestState) -> int:
        """What one request, waiting or prefilling, is to compute."""
        return min(_left(request), self._share_of(request))

    def _share_of(self, request: RequestState) -> int:
        share = self._shares[request.request_id]
        return share.num_blocks * self._manager.block_size + share.rest

    def _is_covered(self, digest: bytes) -> bool:
        return digest in self._promised or self._manager.pool.find(digest) is not None


def _left(request: RequestState) -> int:
    return len(request.tokens) - request.num_computed
