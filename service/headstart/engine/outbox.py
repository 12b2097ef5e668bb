"""What the engine thread has to say and has not published yet. Owned by that thread; replaced at each publication."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.contract.events import EventBatch
from headstart.core.step import Chunk
from headstart.engine.messages import LoadRecord, StepResult
from headstart.engine.trace import StepTrace
from headstart.errors import HeadstartError
from headstart.scheduler.stats import SchedulerStats


@dataclass(slots=True)
class Outbox:
    """The fields are those of `StepResult`. `has_news`: the load or the stats changed, if nothing else did."""

    has_news: bool = False
    trace: StepTrace | None = None
    step_time: tuple[float, int] | None = None
    chunks: list[Chunk] = field(default_factory=list)
    batches: list[EventBatch] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    refused: list[tuple[str, HeadstartError]] = field(default_factory=list)
    resets: list[tuple[int, int | HeadstartError]] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to publish."""
        return bool(
            self.has_news or self.chunks or self.batches or self.accepted or self.started or self.refused or self.resets
        )

    def result(
        self, *, load: LoadRecord, stats: SchedulerStats, num_decoder_faults: int, leaked_blocks: int
    ) -> StepResult:
        """Everything, frozen. The outbox must not be used again."""
        return StepResult(
            load=load,
            stats=stats,
            num_decoder_faults=num_decoder_faults,
            leaked_blocks=leaked_blocks,
            chunks=self.chunks,
            batches=self.batches,
            started=self.started,
            refused=self.refused,
            resets=self.resets,
            trace=self.trace,
            step_time=self.step_time,
        )
