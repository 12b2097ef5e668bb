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

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from headstart.contract.prefix import hit_length

from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.view import PodView

_UNMEASURED_TOKENS_PER_S = 1000.0
_MAX_SHARE = 0.95
"""Of hit ratio and utilization: their formulas have no value at 1."""

_MASK = (1 << 64) - 1


class Policy(StrEnum):
    """How pods are ranked. All but `prefix` are there to compare with."""

    PREFIX = "prefix"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


class Query(NamedTuple):
    """A prompt to place. All its known tokens count as prompt, those of earlier attempts too.

    `hashes` are those of its full blocks, as they travel on the wire; `matched` is what the index found of them.
    `arrivals_per_s` is per pod, `utilization` the share of the time that pods spend on prefill.
    `tie_key` decides ties of prompts without a full block, and `turn` counts requests for round robin. Pods of another
    `numerics_id`, when one is given, come last: a continuation there may give another text.
    """

    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[int] = ()
    matched: Mapping[PodKey, int] = MappingProxyType({})
    mean_output_tokens: float = 128.0
    hit_ratio: float = 0.5
    arrivals_per_s: float = 0.0
    utilization: float = 0.0
    reads_cache: bool = True
    numerics_id: str = ""
    tie_key: int = 0
    turn: int = 0


class Ranked(NamedTuple):
    """A pod and what the request would cost there, in seconds by term; `cost_s` is their sum."""

    view: PodView
    matched_blocks: int
    predicted_cached_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    eviction_s: float
    behind_s: float
    cost_s: float

    @property
    def work_s(self) -> float:
        """What the request itself takes there once it is its turn."""
        return self.prefill_s + self.decode_s


_COST = attrgetter("cost_s")
_make_ranked = partial(tuple.__new__, Ranked)  # a third of the time that its own constructor takes


def rank(query: Query, views: Sequence[PodView], policy: Policy = Policy.PREFIX) -> list[Ranked]:
    """All views, the best first. Views of one group only: others tokenize and hash otherwise."""
    if not views:
        return []
    speeds = _speeds(views)
    ranked = _prices(query, views, speeds)
    if policy is Policy.ROUND_ROBIN:
        ranked = _rotated(query, ranked)
    elif policy is Policy.LEAST_LOADED:
        ranked = sorted(_rotated(query, ranked), key=lambda each: _busyness(each.view))
    else:
        fastest = max(speed.tokens_per_s for speed in speeds.values())
        ranked = _by_cost(query, ranked, tie_s=views[0].block_size / fastest)
    if query.numerics_id:
        ranked.sort(key=lambda each: each.view.numerics_id != query.numerics_id)
    return ranked


def _prices(query: Query, views: Sequence[PodView], speeds: Mapping[str, _Speed]) -> list[Ranked]:
    """One pass over all pods, which is most of a decision: what depends on the query alone is worked out before it."""
    matched = query.matched if query.reads_cache else {}
    prompt_tokens = query.prompt_tokens
    output_tokens = min(float(query.max_tokens), query.mean_output_tokens)
    all_tokens = prompt_tokens + output_tokens
    hit_ratio = min(query.hit_ratio, _MAX_SHARE)
    asked_again = hit_ratio / (1.0 - hit_ratio)
    behind_per_s = query.arrivals_per_s / (1.0 - min(query.utilization, _MAX_SHARE))
    ranked = []
    for view in views:
        load, block_size = view.load, view.block_size
        rate, usual_step_s = speeds[view.numerics_id]
        matched_blocks = matched.get(view.key, 0)
        hit_tokens = hit_length(matched_blocks, prompt_tokens, block_size) if matched_blocks else 0
        spare_blocks = load.free_blocks - view.pending_blocks
        evicted_blocks = all_tokens / block_size - matched_blocks
        if spare_blocks > 0:
            evicted_blocks = evicted_blocks - spare_blocks if evicted_blocks > spare_blocks else 0.0
        queue_s = (load.pending_prefill_tokens + view.pending_tokens) / rate
        prefill_s = (prompt_tokens - hit_tokens) / rate
        decode_s = output_tokens * (load.decode_step_s or usual_step_s)
        eviction_s = evicted_blocks * block_size * asked_again / rate
        behind_s = (prefill_s + eviction_s) * behind_per_s * (queue_s + prefill_s)
        cost_s = queue_s + prefill_s + decode_s + eviction_s + behind_s
        terms = (view, matched_blocks, hit_tokens, queue_s, prefill_s, decode_s, eviction_s, behind_s, cost_s)
        ranked.append(_make_ranked(terms))
    return ranked


def _by_cost(query: Query, ranked: list[Ranked], *, tie_s: float) -> list[Ranked]:
    ordered = sorted(ranked, key=_COST)
    num_tied = bisect_left(ordered, ordered[0].cost_s + tie_s, key=_COST)
    if num_tied > 1:
        block = _first_new_block(query, ranked)
        ordered[:num_tied] = sorted(
            ordered[:num_tied],
            key=lambda each: (each.matched_blocks, -each.eviction_s, _weight(block, each.view.key.uid)),
            reverse=True,
        )
    return ordered


def _first_new_block(query: Query, ranked: list[Ranked]) -> int:
    """Of the prompt, the first block that no candidate holds; the last one when one of them holds all."""
    if not query.hashes:
        return query.tie_key
    deepest = max(each.matched_blocks for each in ranked)
    return query.hashes[min(deepest, len(query.hashes) - 1)]


def _weight(block: int, uid: str) -> int:
    """Rendezvous hashing: the pod of the largest weight is the block's home."""
    return int.from_bytes(blake2b((block & _MASK).to_bytes(8, "big") + uid.encode(), digest_size=8).digest(), "big")


class _Speed(NamedTuple):
    """Of a kind of pod: of prefill, and seconds of a decode step on one that has not decoded yet."""

    tokens_per_s: float
    step_s: float


def _speeds(views: Sequence[PodView]) -> dict[str, _Speed]:
    """By `numerics_id`: the best rate of prefill that any of the kind has shown, and the mean of their decode steps.

    What a pod measures of itself is too low while its steps are small: after its self-test, or when nearly all is
    cached. Taken at its word it would get no long prompt, and never learn better. Were the step of a pod that has just
    started 0, it would seem to write for nothing and draw requests away from their prefix.
    """
    rates: dict[str, float] = {}
    steps: dict[str, list[float]] = {}
    for view in views:
        kind, load = view.numerics_id, view.load
        rate = load.prefill_tokens_per_s
        if kind not in rates:
            rates[kind], steps[kind] = rate, []
        elif rate > rates[kind]:
            rates[kind] = rate
        if load.decode_step_s > 0.0:
            steps[kind].append(load.decode_step_s)
    usual_rate = max(rates.values()) or _UNMEASURED_TOKENS_PER_S
    usual_step_s = _mean([step_s for known in steps.values() for step_s in known], 0.0)
    return {kind: _Speed(rate or usual_rate, _mean(steps[kind], usual_step_s)) for kind, rate in rates.items()}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _rotated(query: Query, ranked: list[Ranked]) -> list[Ranked]:
    ordered = sorted(ranked, key=lambda each: each.view.key)
    start = query.turn % len(ordered)
    return ordered[start:] + ordered[:start]


def _busyness(view: PodView) -> int:
    """Requests that are there or on their way; what others placed shows in the load only."""
    return max(view.load.running + view.load.waiting + view.num_pending, view.num_in_flight)
