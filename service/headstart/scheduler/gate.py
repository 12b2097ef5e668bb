"""Who could start, and with what: questions about admissions that change nothing.

It reads the manager, the waiting queue and the running set, which the scheduler owns.
"""

from __future__ import annotations

from headstart.cache.manager import BlockManager
from headstart.contract.prefix import reads_cache
from headstart.core.request import PrefixMatch, RequestState
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.preemption import owed
from headstart.scheduler.running import RunningSet
from headstart.scheduler.waiting import WaitingQueue


class Gate:
    """Answers for the requests of one scheduler."""

    def __init__(
        self, manager: BlockManager, waiting: WaitingQueue, running: RunningSet, limits: SchedulerLimits
    ) -> None:
        self._manager = manager
        self._waiting = waiting
        self._running = running
        self._limits = limits
        self._watermark_blocks = limits.watermark_blocks(manager.pool.num_blocks)

    def match(self, request: RequestState) -> PrefixMatch:
        """The cached blocks that continue a request's table; none for one that may not read the cache."""
        if not reads_cache(request.spec.prompt_logprobs):
            return PrefixMatch([], request.num_computed)
        return self._manager.match(request.table, request.tokens)

    def need(self, request: RequestState, match: PrefixMatch) -> int:
        """Free blocks that all known tokens of a request would use up."""
        return self._manager.need(request.table, len(request.tokens), match.block_ids)

    def room(self, *, is_idle: bool) -> int:
        """Blocks that an admission may use. An idle engine has no watermark, or nothing could start."""
        promised = sum(owed(self._manager, request) for request in self._running.prefilling)
        return self._manager.pool.num_free - promised - (0 if is_idle else self._watermark_blocks)

    def newcomer(self, beside: RequestState | None = None) -> int:
        """Tokens that the first waiting request could use if it started now; 0 when it could not.

        `beside` is a waiting request that starts before it.
        """
        other = next((request for request in self._waiting if request is not beside), None)
        if other is None:
            return 0
        match = self.match(other)
        tokens = len(other.tokens) - match.num_tokens
        if tokens > self._limits.prefill_cap and len(self._running.prefilling) >= self._limits.max_partial_prefills:
            return 0
        rank = self._waiting.rank(other)
        has_place = len(self._running) + (beside is not None) < self._limits.max_running
        room = self.room(is_idle=False) - (self.need(beside, self.match(beside)) if beside else 0)
        is_free_to_start = has_place and self.need(other, match) <= room
        is_above = any(self._waiting.rank(request) > rank for request in (beside, *self._running) if request)
        return min(tokens, self._limits.prefill_cap) if is_free_to_start or is_above else 0

    def share(self) -> int:
        """The cap on a running prompt: less than usual while another request could start, so that it finds room.

        The running prompts share equally, and at least half of what the decodes leave.
        """
        prompts = len(self._running.prefilling)
        newcomer = self.newcomer() if prompts else 0
        if not newcomer:
            return self._limits.prefill_cap
        left = self._limits.max_num_batched_tokens - (len(self._running) - prompts)
        return min(self._limits.prefill_cap, max(1, max(left // 2, left - newcomer) // prompts))
