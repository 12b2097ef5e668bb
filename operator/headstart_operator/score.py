"""Which pod is cheapest for a prompt, in seconds. Pure: everything it needs comes in, nothing is kept.

    queue    = (the pod's pending prefill + our own placements that it has not confirmed) / prefill rate
    prefill  = (prompt - hit) / prefill rate
    decode   = min(max_tokens, mean output) x the pod's decode step, its kind's before it has decoded
    eviction = tokens that it must evict x h / (1 - h) / prefill rate
    behind   = (prefill + eviction) x a x (queue + prefill) / (1 - u)

The least sum wins. `h` is the pool's hit ratio: an evicted block is asked for again with that chance, and then evicts
another one in turn. `behind` is what the work costs those who come later: in an M/G/1 queue work that is added delays
everyone who arrives before the queue is next empty, and at `a` arrivals a second and a utilization of `u` that takes
(queue + prefill) / (1 - u). Without it each request would leave its prefix for a pod that is a little less busy, and
the work of computing it again would make all of them wait.

Sums that differ by less than one block's prefill are a tie. Ties go to the longest match, as a sibling does whose
prefix is being computed; then to the fewest evictions; then by rendezvous of the first block that no candidate holds,
so that a cold prefix has one home however many routers there are.
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
_MAX_SHARE = 0.95
"""Of hit ratio and utilization: their formulas have no value at 1."""

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
    `arrivals_per_s` is per pod, `utilization` the share of the time that pods spend on prefill.
    `tie_key` decides ties of prompts without a full block, and `turn` counts requests for round robin. Pods of another
    `numerics_id`, when one is given, come last: a continuation there may give another text.
    """

    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[int] = ()
    matched: Mapping[PodKey, int] = field(default_factory=dict)
    mean_output_tokens: float = 128.0
    hit_ratio: float = 0.5
    arrivals_per_s: float = 0.0
    utilization: float = 0.0
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
    behind_s: float

    @property
    def work_s(self) -> float:
        """What the request itself takes there once it is its turn."""
        return self.prefill_s + self.decode_s

    @property
    def cost_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s + self.eviction_s + self.behind_s


def rank(query: Query, views: Sequence[PodView], policy: Policy = Policy.PREFIX) -> list[Ranked]:
    """All views, the best first. Views of one group only: others tokenize and hash otherwise."""
    if not views:
        return []
    rates = _rates(views)
    ranked = _prices(query, views, rates, _decode_steps(views))
    if policy is Policy.ROUND_ROBIN:
        ranked = _rotated(query, ranked)
    elif policy is Policy.LEAST_LOADED:
        ranked = sorted(_rotated(query, ranked), key=lambda each: _busyness(each.view))
    else:
        ranked = _by_cost(query, ranked, tie_s=views[0].block_size / max(rates.values()))
    if query.numerics_id:
        ranked.sort(key=lambda each: each.view.numerics_id != query.numerics_id)
    return ranked


def _prices(
    query: Query, views: Sequence[PodView], rates: Mapping[str, float], steps: Mapping[str, float]
) -> list[Ranked]:
    """One pass over all pods: what depends on the query alone is worked out before it."""
    matched = query.matched if query.reads_cache else {}
    prompt_tokens = query.prompt_tokens
    output_tokens = min(float(query.max_tokens), query.mean_output_tokens)
    hit_ratio = min(query.hit_ratio, _MAX_SHARE)
    asked_again = hit_ratio / (1.0 - hit_ratio)
    behind_per_s = query.arrivals_per_s / (1.0 - min(query.utilization, _MAX_SHARE))
    ranked = []
    for view in views:
        load, rate, block_size = view.load, rates[view.numerics_id], view.block_size
        matched_blocks = matched.get(view.key, 0)
        hit_tokens = hit_length(matched_blocks, prompt_tokens, block_size)
        spare_blocks = load.free_blocks - view.pending_blocks
        evicted_blocks = (prompt_tokens + output_tokens) / block_size - matched_blocks
        if spare_blocks > 0:
            evicted_blocks = max(0.0, evicted_blocks - spare_blocks)
        queue_s = (load.pending_prefill_tokens + view.pending_tokens) / rate
        prefill_s = (prompt_tokens - hit_tokens) / rate
        decode_s = output_tokens * (load.decode_step_s or steps[view.numerics_id])
        eviction_s = evicted_blocks * block_size * asked_again / rate
        behind_s = (prefill_s + eviction_s) * behind_per_s * (queue_s + prefill_s)
        ranked.append(Ranked(view, matched_blocks, hit_tokens, queue_s, prefill_s, decode_s, eviction_s, behind_s))
    return ranked


def _by_cost(query: Query, ranked: list[Ranked], *, tie_s: float) -> list[Ranked]:
    priced = [(each.cost_s, each) for each in ranked]
    bound = min(cost for cost, _ in priced) + tie_s
    best = [each for cost, each in priced if cost < bound]
    rest = sorted((pair for pair in priced if pair[0] >= bound), key=lambda pair: pair[0])
    if len(best) > 1:
        block = _first_new_block(query, ranked)
        best.sort(
            key=lambda each: (each.matched_blocks, -each.eviction_s, _weight(block, each.view.key.uid)), reverse=True
        )
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


def _rates(views: Sequence[PodView]) -> dict[str, float]:
    """Prefill tokens/s of each kind of pod: the best that any of the kind has shown.

    What a pod measures of itself is too low while its steps are small: after its self-test, or when nearly all is
    cached. Taken at its word it would get no long prompt, and never learn better.
    """
    rates: dict[str, float] = {}
    for view in views:
        kind, rate = view.numerics_id, view.load.prefill_tokens_per_s
        if rate >= rates.get(kind, 0.0):
            rates[kind] = rate
    usual = max(rates.values()) or _UNMEASURED_TOKENS_PER_S
    return {kind: rate or usual for kind, rate in rates.items()}


def _decode_steps(views: Sequence[PodView]) -> dict[str, float]:
    """Seconds of a decode step on a pod of each kind that has not decoded yet: the mean of those that have.

    Were it 0, a pod that has just started would seem to write for nothing and draw requests away from their prefix.
    """
    sums: dict[str, tuple[float, int]] = {}
    for view in views:
        kind, step_s = view.numerics_id, view.load.decode_step_s
        sum_s, count = sums.get(kind, (0.0, 0))
        sums[kind] = (sum_s + step_s, count + (step_s > 0.0))
    usual_s = sum(sum_s for sum_s, _ in sums.values()) / max(1, sum(count for _, count in sums.values()))
    return {kind: sum_s / count if count else usual_s for kind, (sum_s, count) in sums.items()}


def _rotated(query: Query, ranked: list[Ranked]) -> list[Ranked]:
    ordered = sorted(ranked, key=lambda each: each.view.key)
    start = query.turn % len(ordered)
    return ordered[start:] + ordered[:start]


def _busyness(view: PodView) -> int:
    """Requests that are there or on their way; what others placed shows in the load only."""
    return max(view.load.running + view.load.waiting + view.num_pending, view.num_in_flight)
