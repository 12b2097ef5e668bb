"""What crosses between the engine thread and the server's event loop: commands one way, step results the other.

All of it is frozen. Nothing here knows how a step is run or who listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from headstart.contract.events import EventBatch
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, FinishReason
from headstart.engine.trace import StepTrace
from headstart.errors import HeadstartError
from headstart.scheduler.stats import SchedulerStats

CANCELLED: Final = Finish(FinishReason.CANCELLED)
DEADLINE_PASSED: Final = Finish(FinishReason.CANCELLED, error="deadline exceeded")
"""How a request ends whose deadline passed, waiting or running: compare with it to answer DEADLINE_EXCEEDED."""


class Add(NamedTuple):
    """Take this request in. Answered by `load.accepted` or `refused` of a step result."""

    spec: GenerateSpec


class Cancel(NamedTuple):
    """End this request; unknown ids are ignored."""

    request_id: str


class Reset(NamedTuple):
    """Drop the prefix cache. Answered under the same ticket by `resets` of a step result."""

    ticket: int
    force: bool


class Stop(NamedTuple):
    """End every request as cancelled, then end the thread."""


Command = Add | Cancel | Reset | Stop


class LoadRecord(NamedTuple):
    """How busy the pod is, as of batch `seq`: what a router ranks it by.

    `accepted` are the request ids taken in since the record before. Rates are 0.0 until a step has measured them.
    `step_age_s` and `draining` are filled in when the handle is asked.
    """

    seq: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    accepted: tuple[str, ...]
    free_blocks: int
    prefill_tokens_per_s: float
    decode_step_s: float
    step_age_s: float = 0.0
    draining: bool = False


class EngineStats(NamedTuple):
    """Counters and gauges of the pod. The blocks sum up to the usable ones; counters never go back."""

    running: int
    waiting: int
    pending_prefill_tokens: int
    free_blocks: int
    referenced_blocks: int
    cached_blocks: int
    num_preemptions: int
    computed_tokens: int
    queried_tokens: int
    hit_tokens: int
    requeried_tokens: int
    rehit_tokens: int
    rematched_tokens: int
    contained_faults: int
    steps: int
    leaked_blocks: int
    last_step_age_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """All that one publication of the engine thread says. `batches` come before `chunks` on the other side.

    `started` are the requests that left the queue; `refused` and `resets` answer commands; `num_decoder_faults` and
    `leaked_blocks` (of the last audit) are totals; `step_time` is the seconds and the tokens of the step, if there was
    one.
    """

    load: LoadRecord
    stats: SchedulerStats
    num_decoder_faults: int
    leaked_blocks: int
    chunks: list[Chunk]
    batches: list[EventBatch]
    started: list[str]
    refused: list[tuple[str, HeadstartError]]
    resets: list[tuple[int, int | HeadstartError]]
    trace: StepTrace | None
    step_time: tuple[float, int] | None = None
