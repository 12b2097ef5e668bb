"""The real chain (event log, pool, block manager, scheduler) with a model that is a function: for tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.events import CacheEvent, Cleared, Removed, Stored
from headstart.contract.prefix import wire_hash
from headstart.contract.request import GenerateSpec
from headstart.core.step import StepOutput, StepPlan, StepUpdates
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler

ROOT = bytes(range(32))


def spec(request_id: str, prompt: int | Sequence[int], *, first: int = 0, **fields: object) -> GenerateSpec:
    """A request whose prompt is given, or is `prompt` consecutive ids from `first`."""
    tokens = range(first, first + prompt) if isinstance(prompt, int) else prompt
    fields.setdefault("max_tokens", 1000)
    return GenerateSpec(request_id=request_id, prompt_token_ids=tuple(tokens), **fields)  # type: ignore[arg-type]


@dataclass
class Chain:
    """A scheduler over `usable` blocks. `next_token(request id, position)` is the model; it never samples eos."""

    usable: int = 10
    block_size: int = 16
    caching: bool = True
    eos: frozenset[int] = frozenset()
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    next_token: Callable[[str, int], int] = lambda _request_id, position: 50_000 + position

    def __post_init__(self) -> None:
        self.log = EventLog()
        self.pool = BlockPool(self.usable, self.log)
        self.manager = BlockManager(self.pool, block_size=self.block_size, root=ROOT, enable_caching=self.caching)
        self.scheduler = Scheduler(self.manager, self.limits, eos_token_ids=self.eos)
        self.view: set[int] = set()
        self.outputs: dict[str, list[int]] = {}
        self.plan: StepPlan | None = None

    def add(self, *specs: GenerateSpec) -> None:
        for each in specs:
            self.scheduler.add(each)

    def schedule(self) -> dict[str, int]:
        """Plan a step: {request id: tokens}."""
        self.plan = self.scheduler.schedule()
        return dict(zip(self.plan.request_ids, self.plan.num_tokens, strict=True))

    def commit(self, **output: object) -> StepUpdates:
        """Finish the planned step with what the model says, or with the given columns of a StepOutput."""
        plan = self.plan
        assert plan is not None
        sampled = output.pop("sampled", None) or self.sample(plan)
        updates = self.scheduler.commit(plan, StepOutput(sampled, **output))  # type: ignore[arg-type]
        return self._note(updates)

    def fail(self) -> StepUpdates:
        """Finish the planned step as one whose forward pass raised."""
        assert self.plan is not None
        return self._note(self.scheduler.commit(self.plan, None))

    def sample(self, plan: StepPlan) -> list[list[int]]:
        sampled: list[list[int]] = []
        for row, (name, start, count) in enumerate(zip(plan.request_ids, plan.starts, plan.num_tokens, strict=True)):
            drafts = plan.drafts.get(row, [])
            known_end = start + count - len(drafts)
            tokens: list[int] = []
            for draft in [*drafts, None] if plan.samples[row] else []:
                tokens.append(self.next_token(name, known_end + len(tokens)))
                if tokens[-1] != draft:
                    break
            sampled.append(tokens)
        return sampled

    def step(self, **output: object) -> dict[str, int]:
        """Schedule and commit: {request id: tokens planned}."""
        planned = self.schedule()
        self.commit(**output)
        return planned

    def run(self, limit: int = 10_000) -> list[dict[str, int]]:
        """Step until nothing is left."""
        steps = []
        while self.scheduler.stats.running or self.scheduler.stats.waiting:
            steps.append(self.step())
            assert len(steps) < limit, "no end in sight"
        return steps

    def events(self) -> list[CacheEvent]:
        """Seal the log: the events since the last time, also applied to `view`."""
        batch = self.log.seal()
        events = list(batch.events) if batch else []
        replay(self.view, events)
        return events

    def truth(self) -> set[int]:
        return {wire_hash(digest) for digest in self.pool.cached_hashes()}

    def _note(self, updates: StepUpdates) -> StepUpdates:
        for name, tokens in zip(updates.request_ids, updates.new_tokens, strict=True):
            self.outputs.setdefault(name, []).extend(tokens)
        return updates


def replay(view: set[int], events: Iterable[CacheEvent]) -> None:
    """Apply events strictly: a store of what is held, or a removal of what is not, is a fault of the stream."""
    for event in events:
        if isinstance(event, Stored):
            assert event.hash not in view, "stored twice"
            view.add(event.hash)
        elif isinstance(event, Removed):
            assert event.hash in view, "removed what was not held"
            view.remove(event.hash)
        else:
            assert isinstance(event, Cleared)
            view.clear()
