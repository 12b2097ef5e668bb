"""One pod in virtual time: the real scheduler, block manager and event log, and a formula for how long a step takes.

Knows no router and no other pod. Owner of its state: the fleet that drives it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from headstart_operator.decision.identity import PodKey

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.codec import LoadFields
from headstart.core.step import StepOutput, StepPlan
from headstart.engine.rates import StepRates
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler

ROOT = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of every pod. A step takes `step_s + tokens * token_s` seconds."""

    num_blocks: int = 600
    block_size: int = 16
    step_s: float = 0.002
    token_s: float = 0.000025
    limits: SchedulerLimits = field(
        default_factory=lambda: SchedulerLimits(long_prefill_token_threshold=128, max_len=1_000_000)
    )


class VirtualPod:
    """One process of a pod. `version` tells apart what was scheduled for it before and after it died."""

    def __init__(self, name: str, shape: Shape, clock: Callable[[], float]) -> None:
        self.name = name
        self.shape = shape
        self.clock = clock
        self.version = 0
        self.is_draining = False
        self.restart()

    def restart(self) -> None:
        self.version += 1
        self.is_up = True
        self.plan: StepPlan | None = None
        self.log = EventLog()
        self.key = PodKey(self.name, str(self.version))
        self.pool = BlockPool(self.shape.num_blocks, self.log)
        manager = BlockManager(self.pool, block_size=self.shape.block_size, root=ROOT)
        self.scheduler = Scheduler(manager, self.shape.limits, clock=self.clock)
        self.rates = StepRates()
        self.accepted: list[str] = []
        self.tokens = random.Random(f"{self.name} {self.version}")

    def begin_step(self) -> float | None:
        """Plan a step; how long it takes, None when there is nothing to do."""
        if not self.scheduler.has_work:
            return None
        self.plan = self.scheduler.schedule()
        return self.shape.step_s + self.plan.total_tokens * self.shape.token_s

    def end_step(self) -> tuple[list[str], dict[str, int]]:
        """Commit it: requests that sampled, and for those that ended how many tokens were cached."""
        plan = self.plan
        assert plan is not None
        self.plan = None
        self.rates.observe(plan, self.shape.step_s + plan.total_tokens * self.shape.token_s)
        sampled = [[self.tokens.randrange(1 << 30, 1 << 31)] if does else [] for does in plan.samples]
        updates = self.scheduler.commit(plan, StepOutput(sampled))
        ended = {name: stats.cached_tokens for name, (_, stats) in updates.finished.items()}
        sampled_ids = [name for name, new in zip(updates.request_ids, updates.new_tokens, strict=True) if new]
        return sampled_ids, ended

    def load(self) -> LoadFields:
        stats = self.scheduler.stats
        accepted, self.accepted = tuple(self.accepted), []
        return LoadFields(
            seq=self.log.seq,
            running=stats.running,
            waiting=stats.waiting,
            pending_prefill_tokens=stats.pending_prefill_tokens,
            accepted=accepted,
            free_blocks=stats.free_blocks,
            prefill_tokens_per_s=self.rates.prefill_tokens_per_s,
            decode_step_s=self.rates.decode_step_s(stats.running),
            step_age_s=0.0,
            draining=self.is_draining,
        )
