"""Whom to preempt so that one waiting request can start: a question that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.cache.manager import BlockManager
from headstart.core.request import RequestState
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.plan_builder import PlanBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What an admission lacks. `need` free blocks beside `hits`, its cached ones, of which `room` are there (without a
    watermark); `num_tokens` to compute; `num_running` requests run."""

    need: int
    hits: Sequence[int]
    num_tokens: int
    room: int
    num_running: int


def owed(manager: BlockManager, request: RequestState) -> int:
    """Blocks that an admitted prompt was promised and has not taken yet."""
    return manager.need(request.table, len(request.tokens)) if request.is_prefilling else 0


def fewest_victims(
    candidates: list[RequestState],
    shortfall: Shortfall,
    plan: PlanBuilder,
    manager: BlockManager,
    limits: SchedulerLimits,
) -> list[RequestState]:
    """The shortest run of `candidates`, from the first, that lets the request start in this plan; [] when none does.

    A victim gives back its blocks (those that nobody else uses), the blocks it was promised, its place among the
    running and the tokens planned for it.
    """
    budget, num_partial = plan.budget, plan.num_partial
    room, num_left = shortfall.room, shortfall.num_running
    watermark = limits.watermark_blocks(manager.pool.num_blocks)
    for index, freed in enumerate(manager.freed_by([request.table for request in candidates], shortfall.hits)):
        victim = candidates[index]
        num_tokens, is_unfinished = plan.planned(victim)
        budget += num_tokens
        num_partial -= is_unfinished
        room += owed(manager, victim)
        num_left -= 1
        is_partial = shortfall.num_tokens > min(budget, limits.prefill_cap)
        may_start = not (is_partial and num_partial >= limits.max_partial_prefills)
        has_room = shortfall.need <= room + freed - (watermark if num_left else 0)
        if may_start and has_room:
            return candidates[: index + 1]
    return []
