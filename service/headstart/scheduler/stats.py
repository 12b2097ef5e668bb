"""What the scheduler counts. `Counters` only grow and belong to the scheduler; `SchedulerStats` is a frozen reading."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from headstart.cache.pool import BlockPool
from headstart.core.request import PrefixMatch, RequestState


@dataclass(slots=True)
class Counters:
    """Totals since the start of the process.

    `queried_tokens` and `hit_tokens` are of requests until they are preempted for the first time; the same for what
    follows in `requeried_tokens` and `rehit_tokens`; `rematched_tokens` are hits that a partial prefill found on its
    way, computed by another request meanwhile. Requests that may not read the cache count nowhere.
    """

    steps: int = 0
    computed_tokens: int = 0
    num_preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    requeried_tokens: int = 0
    rehit_tokens: int = 0
    rematched_tokens: int = 0
    contained_faults: int = 0

    def count_query(self, request: RequestState, match: PrefixMatch) -> None:
        """A request that may read the cache was admitted with this match."""
        if request.num_preemptions == 0:
            self.queried_tokens += request.num_prompt
            self.hit_tokens += request.cached_tokens
        else:
            self.requeried_tokens += len(request.tokens)
            self.rehit_tokens += match.num_tokens

    def count_rematch(self, request: RequestState, start: int) -> None:
        """A prefill goes on at `start`: what lies before it was found. To the request, too, prompt tokens count as
        cached that it need not compute, whenever they were found.
        """
        found = start - request.num_computed
        self.rematched_tokens += found
        if request.num_preemptions:
            self.rehit_tokens += found
        else:
            found = min(found, request.num_prompt - request.cached_tokens)
            request.cached_tokens += found
            self.hit_tokens += found


class SchedulerStats(NamedTuple):
    """Requests, tokens and blocks as of one moment, and the totals of `Counters`.

    Blocks in use by a request, idle with reusable content, and idle without: the three sum to the pool's usable blocks.
    """

    running: int
    waiting: int
    pending_prefill_tokens: int
    referenced_blocks: int
    cached_blocks: int
    free_blocks: int
    steps: int
    computed_tokens: int
    num_preemptions: int
    queried_tokens: int
    hit_tokens: int
    requeried_tokens: int
    rehit_tokens: int
    rematched_tokens: int
    contained_faults: int


def read_stats(
    counters: Counters, pool: BlockPool, *, running: int, waiting: int, pending_prefill_tokens: int
) -> SchedulerStats:
    """A frozen reading of counters and pool."""
    return SchedulerStats(
        running=running,
        waiting=waiting,
        pending_prefill_tokens=pending_prefill_tokens,
        referenced_blocks=pool.num_blocks - pool.num_free,
        cached_blocks=pool.num_idle_cached,
        free_blocks=pool.num_free - pool.num_idle_cached,
        **{field.name: getattr(counters, field.name) for field in fields(counters)},
    )
