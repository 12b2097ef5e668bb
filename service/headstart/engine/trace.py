"""An optional record of each step: who advanced how far, who shares which blocks, what was evicted.

For people who want to watch the scheduler at work; off by default. It reads plans only and knows nothing of the
scheduler's own state. `StepTracer` is owned by the engine thread; the `StepTrace`s it makes are frozen.
"""

from __future__ import annotations

from typing import NamedTuple

from headstart.contract.events import EventBatch, Removed
from headstart.core.step import StepPlan
from headstart.scheduler.stats import SchedulerStats


class TraceRow(NamedTuple):
    """One row: it computed positions `start .. start + num_tokens - 1`; `is_decode` when all lie past the prompt."""

    request_id: str
    start: int
    num_tokens: int
    is_decode: bool


class StepTrace(NamedTuple):
    """One step. `evicted` are 64-bit hashes; `shared` maps a block id to the requests, two or more, that hold it."""

    step: int
    rows: tuple[TraceRow, ...]
    free_blocks: int
    cached_blocks: int
    evicted: tuple[int, ...]
    shared: dict[int, tuple[str, ...]]


class StepTracer:
    """Follows the block tables through the plans, as a runner does."""

    def __init__(self) -> None:
        self._tables: dict[str, list[int]] = {}
        self._prompt_tokens: dict[str, int] = {}

    def record(self, plan: StepPlan, stats: SchedulerStats, batch: EventBatch | None) -> StepTrace:
        """The trace of a committed step. `batch` holds its events, `stats` the pool after it."""
        self._follow(plan)
        events = batch.events if batch is not None else ()
        return StepTrace(
            step=plan.step,
            rows=tuple(self._row(plan, index) for index in range(plan.num_rows)),
            free_blocks=stats.free_blocks,
            cached_blocks=stats.cached_blocks,
            evicted=tuple(event.hash for event in events if isinstance(event, Removed)),
            shared=self._shared_blocks(),
        )

    def _row(self, plan: StepPlan, index: int) -> TraceRow:
        request_id, start = plan.request_ids[index], plan.starts[index]
        is_decode = start >= self._prompt_tokens[request_id]
        return TraceRow(request_id, start, plan.num_tokens[index], is_decode)

    def _follow(self, plan: StepPlan) -> None:
        for request_id in plan.finished:
            self._tables.pop(request_id, None)
            self._prompt_tokens.pop(request_id, None)
        for started in plan.started:
            self._tables[started.spec.request_id] = list(started.block_ids)
            self._prompt_tokens[started.spec.request_id] = len(started.spec.prompt_token_ids)
        for request_id, block_ids in zip(plan.request_ids, plan.new_block_ids, strict=True):
            self._tables[request_id].extend(block_ids)

    def _shared_blocks(self) -> dict[int, tuple[str, ...]]:
        holders: dict[int, list[str]] = {}
        for request_id, table in self._tables.items():
            for block_id in table:
                holders.setdefault(block_id, []).append(request_id)
        return {block_id: tuple(ids) for block_id, ids in holders.items() if len(ids) > 1}
