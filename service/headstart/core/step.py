"""What the parts of one step hand to each other: a plan down, an output back, updates out.

Columnar: one list per field, one entry per row, all of one length. A frozen object per row would cost more than
the scheduling of it. The containers are frozen; whoever gets one does not change the lists in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headstart.contract.request import GenerateSpec


class FinishReason(StrEnum):
    """Why a request ended, in the words of the wire."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class StartedRow(NamedTuple):
    """A request that enters the runner in this step: for the first time, or again after a preemption.

    `token_ids` are all known tokens (prompt, then output); `block_ids` the hit blocks it starts with, this step's new
    ones not among them; `num_computed` how many leading tokens need no forward pass.
    """

    spec: GenerateSpec
    token_ids: list[int]
    num_computed: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How far each scheduled request advances in this step.

    Row `i` computes positions `starts[i] .. starts[i] + num_tokens[i] - 1` of request `request_ids[i]`. Of those
    tokens the last `len(drafts[i])` are unverified guesses that follow the known ones. `new_block_ids[i]` are appended
    to the row's block table before anything else is read from it; hits found on the way are among them.
    A row samples when it reaches the last known token (`samples[i]`); a partial prefill does not.
    `read_only` holds the indices of rows whose tokens are computed but whose K/V is not written (slot -1): the
    blocks that hold them are shared and already full.
    """

    step: int
    request_ids: list[str]
    starts: list[int]
    num_tokens: list[int]
    new_block_ids: list[list[int]]
    samples: list[bool]
    drafts: dict[int, list[int]] = field(default_factory=dict)
    read_only: frozenset[int] = frozenset()
    started: list[StartedRow] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """Requests whose rows the runner forgets before it reads this plan: ended, aborted or preempted since the last."""

    @property
    def num_rows(self) -> int:
        return len(self.request_ids)

    @property
    def total_tokens(self) -> int:
        return sum(self.num_tokens)


class TokenLogprobs(NamedTuple):
    """One position: the token, its logprob, and the most likely alternatives (ids and logprobs, best first)."""

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the runner found. Column `i` belongs to row `i` of the plan.

    `sampled[i]` is empty for a row that does not sample; otherwise the accepted drafts and then one more token.
    `drafts[i]` are guesses for the row's next step. `faults[i]` says why a row has no result: it ends alone. `poisoned`
    are the faulty rows whose logits were not finite: what they wrote or read in the cache is suspect.
    """

    sampled: list[list[int]]
    drafts: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """Of the row's scheduled prompt positions, in order; position 0 of a prompt has none."""
    faults: dict[int, str] = field(default_factory=dict)
    poisoned: frozenset[int] = frozenset()


class Finish(NamedTuple):
    """How a request ended. `matched_stop` is the stop id that ended it, None for eos, length and the rest."""

    reason: FinishReason
    matched_stop: int | None = None
    error: str = ""


class RequestStats(NamedTuple):
    """What is told about a request when it ends. Times are on the monotonic clock; 0.0 means "never"."""

    prompt_tokens: int
    cached_tokens: int
    num_preemptions: int
    arrival_s: float
    admitted_s: float
    first_token_s: float


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """What one commit changed, for the decoder and the streams. Columnar like the plan.

    `new_tokens[i]` may be empty when a request only ended. `finished` is keyed by request id and holds those that ended
    in this commit; each of them is also a row here, so that its held-back text is flushed.
    """

    request_ids: list[str]
    new_tokens: list[list[int]]
    finished: dict[str, tuple[Finish, RequestStats]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text and tokens of one request that leave the engine together. The last one carries `finish`."""

    request_id: str
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    matched_stop_string: str = ""
    stats: RequestStats | None = None
