"""Which pod is cheapest for a prompt, in seconds. Pure: everything it needs comes in, nothing is kept.

    queue    = (the pod's pending prefill + our own placements that it has not confirmed) / prefill rate
    prefill  = (prompt - hit) / prefill rate
    decode   = min(max_tokens, mean output) x step time x (running + 1) / max(running, 1)
    eviction = tokens that it must evict x the pool's hit ratio / prefill rate

The least sum wins. Sums that differ by less than one block's prefill are a tie, and ties go by rendezvous of the first
block that no candidate holds, so that a cold prefix has one home however many routers there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from headstart.contract.prefix import hit_length

from headstart_operator.identity import PodKey
from headstart_operator.view import PodView

_UNMEASURED_TOKENS_PER_S = 1000.0
_MASK = (1 << 64) - 1


class Policy(StrEnum):
    """How pods are ranked. All but `prefix` are there to compare with."""

    PREFIX = "prefix"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A prompt to place. All its known tokens count as prompt, those of earlier attempts too.

    `hashes` are those of its full blocks, as they travel on the wire; `matched` is what the index found of them.
    `tie_key` decides ties of prompts without a full block, and `turn` counts requests for round robin. Pods of another
    `numerics_id`, when one is given, come last: a continuation there may give another text.
    """

    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[int] = ()
    matched: Mapping[PodKey, int] = field(default_factory=dict)
    mean_output_tokens: float = 128.0
    hit_ratio: float = 0.5
    reads_cache: bool = True
    numerics_id: str = ""
    tie_key: int = 0
    turn: int = 0


class Ranked(NamedTuple):
    """A pod and what the request would cost there, in seconds by term."""

    view: PodView
    matched_blocks: int
    predicted_cached_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    eviction_s: float

    @property
    def work_s(self) -> float:
        """All but the queue."""
        return self.prefill_s + self.decode_s + self.eviction_s

    @property
    def cost_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s + self.eviction_s


def rank(query: Query, views: Sequence[PodView], policy: Policy = Policy.PREFIX) -> list[Ranked]:
    """All views, the best first. Views of one group only: others tokenize and hash otherwise."""
    if not views:
        return []
    usual_rate = _usual_rate(views)
    ranked = [_price(query, view, view.load.prefill_tokens_per_s or usual_rate) for view in views]
    if policy is Policy.ROUND_ROBIN:
        ranked = _rotated(query, ranked)
    elif policy is Policy.LEAST_LOADED:
        ranked = sorted(_rotated(query, ranked), key=lambda each: _busyness(each.view))
    else:
        ranked = _by_cost(query, ranked, tie_s=min(view.block_size for view in views) / usual_rate)
    if query.numerics_id:
        ranked.sort(key=lambda each: each.view.numerics_id != query.numerics_id)
    return ranked


def _price(query: Query, view: PodView, rate: float) -> Ranked:
    load = view.load
    matched_blocks = query.matched.get(view.key, 0) if query.reads_cache else 0
    hit_tokens = hit_length(matched_blocks, query.prompt_tokens, view.block_size)
    output_tokens = min(float(query.max_tokens), query.mean_output_tokens)
    running = load.running + load.waiting + view.num_pending
    needed_blocks = (query.prompt_tokens + output_tokens) / view.block_size - matched_blocks
    evicted_blocks = max(0.0, needed_blocks - max(0, load.free_blocks - view.pending_blocks))
    return Ranked(
        view,
        matched_blocks,
        hit_tokens,
        (load.pending_prefill_tokens + view.pending_tokens) / rate,
        (query.prompt_tokens - hit_tokens) / rate,
        output_tokens * load.decode_step_s * (running + 1) / max(running, 1),
        evicted_blocks * view.block_size * query.hit_ratio / rate,
    )


def _by_cost(query: Query, ranked: list[Ranked], *, tie_s: float) -> list[Ranked]:
    priced = [(each.cost_s, each) for each in ranked]
    bound = min(cost for cost, _ in priced) + tie_s
    best = [each for cost, each in priced if cost < bound]
    rest = sorted((pair for pair in priced if pair[0] >= bound), key=lambda pair: pair[0])
    if len(best) > 1:
        block = _first_new_block(query, ranked)
        best.sort(key=lambda each: _weight(block, each.view.key.uid), reverse=True)
    return best + [each for _, each in rest]


def _first_new_block(query: Query, ranked: list[Ranked]) -> int:
    """Of the prompt, the first block that no candidate holds; the last one when one of them holds all."""
    if not query.hashes:
        return query.tie_key
    deepest = max(each.matched_blocks for each in ranked)
    return query.hashes[min(deepest, len(query.hashes) - 1)]


def _weight(block: int, uid: str) -> int:
    """Rendezvous hashing: the pod of the largest weight is the block's home."""
    return int.from_bytes(blake2b((block & _MASK).to_bytes(8, "big") + uid.encode(), digest_size=8).digest(), "big")


def _usual_rate(views: Sequence[PodView]) -> float:
    """What a pod that has not measured itself is taken for: the mean of the others."""
    rates = [view.load.prefill_tokens_per_s for view in views if view.load.prefill_tokens_per_s > 0.0]
    return sum(rates) / len(rates) if rates else _UNMEASURED_TOKENS_PER_S


def _rotated(query: Query, ranked: list[Ranked]) -> list[Ranked]:
    ordered = sorted(ranked, key=lambda each: each.view.key)
    start = query.turn % len(ordered)
    return ordered[start:] + ordered[:start]


def _busyness(view: PodView) -> int:
    """Requests that are there or on their way; what others placed shows in the load only."""
    return max(view.load.running + view.load.waiting + view.num_pending, view.num_in_flight)
