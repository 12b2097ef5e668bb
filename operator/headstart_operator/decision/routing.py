"""The decision and what is remembered for the next one: index, placements, and what requests have been like.

All of it is plain calls: whoever has views of pods can rank them, over a network or in a simulation. Knows nothing of
streams. Owner and only writer: the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart_operator.decision.identity import GroupKey
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.placements import Placements
from headstart_operator.decision.score import Policy, Query, Ranked, rank
from headstart_operator.decision.usage import PoolUsage
from headstart_operator.decision.view import PodView


class Routing:
    """`clock` is in seconds and never goes back."""

    def __init__(self, *, policy: Policy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._usage: dict[GroupKey, PoolUsage] = {}
        self._turn = 0
        self.index = PrefixIndex()
        self.placements = Placements(self.index, clock)

    def rank(self, query: Query, views: Sequence[PodView], policy: Policy | None = None) -> list[Ranked]:
        """Views of one group, best first. `matched`, `turn` and the pool's means are filled in here."""
        if not views:
            return []
        usage = self._usage_of(views[0].group)
        filled = query._replace(
            matched=self.index.match(query.hashes),
            mean_output_tokens=usage.mean_output_tokens,
            hit_ratio=usage.hit_ratio,
            arrivals_per_s=usage.arrivals_per_s / len(views),
            utilization=usage.work_per_s / len(views),
            turn=self._turn,
        )
        return rank(filled, views, policy or self._policy)

    def place(self, request_id: str, ranked: Ranked, query: Query) -> None:
        """A request goes to this pod under this id. Raises ValueError for an id that is in use."""
        view = ranked.view
        self._turn += 1
        self._usage_of(view.group).arrive(self._clock(), ranked.prefill_s)
        self.placements.add(
            request_id,
            view.key,
            hashes=query.hashes[ranked.matched_blocks :],
            tokens=query.prompt_tokens - ranked.predicted_cached_tokens,
            blocks=-(-query.prompt_tokens // view.block_size) - ranked.matched_blocks,
        )

    def settle(
        self, request_id: str, view: PodView, *, prompt_tokens: int = 0, cached_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """The request ended there. `prompt_tokens` is 0 when nothing is to be learnt from it, as after a failure."""
        self.placements.end(request_id)
        if prompt_tokens:
            usage = self._usage_of(view.group)
            usage.observe(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)

    def hit_ratio(self, pool: str) -> float | None:
        """Of the requests of this pool that ended lately; None before the first."""
        usages = [usage for group, usage in self._usage.items() if group.pool == pool]
        asked = sum(usage.seen_prompt_tokens for usage in usages)
        return sum(usage.seen_cached_tokens for usage in usages) / asked if asked else None

    def _usage_of(self, group: GroupKey) -> PoolUsage:
        return self._usage.setdefault(group, PoolUsage())
