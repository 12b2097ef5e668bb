"""From a plan and the rows to the arrays of one forward pass.

Rows stay in the order of the plan and a row's tokens are contiguous. A plan that does not fit the rows is refused here;
the page table that it makes is checked by the forward pass, which knows its pages and would read it blindly.

Does not know the model, the sampler or where K/V lives. Owns no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from headstart_kernels.metadata import AttentionMetadata, build_metadata

from headstart.core.step import StepPlan
from headstart.runner.rows import IntArray, Row, Rows


class LogitSpan(NamedTuple):
    """Logit rows `first .. first + num_logits - 1` belong to plan row `row`, at positions `position` and on."""

    row: int
    first: int
    num_logits: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step's arrays. Logit rows of sampled positions come first, then those of scored prompt positions."""

    token_ids: IntArray
    """[tokens]: the rows' tokens one after the other; drafts are the last tokens of their row."""
    logit_rows: IntArray
    """[n]: which of the flattened tokens want logits."""
    metadata: AttentionMetadata
    samples: list[LogitSpan]
    """One for each row that samples: its last known token, then its drafts."""
    prompts: list[LogitSpan]
    """One for each row whose scheduled prompt positions are scored: position p scores prompt token p + 1."""

    @property
    def num_sample_logits(self) -> int:
        return self.samples[-1].first + self.samples[-1].num_logits if self.samples else 0


def build_batch(plan: StepPlan, batch_rows: Sequence[Row], rows: Rows, *, block_size: int) -> BatchPlan:
    """Lay out one step of at least one row.

    Drafts must be valid token ids; they are written behind the known tokens of their row, where the accepted ones will
    be appended. Raises ValueError for a plan that does not fit the rows.
    """
    check_plan(plan, batch_rows, rows, block_size=block_size)
    for index, drafts in plan.drafts.items():
        line = batch_rows[index].line
        rows.tokens.write(line, int(rows.tokens.lengths[line]), drafts)
    lines = [row.line for row in batch_rows]
    metadata = build_metadata(
        starts=plan.starts,
        num_tokens=plan.num_tokens,
        block_tables=rows.blocks.cells,
        table_rows=lines,
        read_only=[row in plan.read_only for row in range(plan.num_rows)],
        page_size=block_size,
    )
    token_lines = np.repeat(lines, plan.num_tokens)
    samples, sample_logits = _sample_spans(plan, metadata.qo_indptr)
    prompts, prompt_logits = _prompt_spans(plan, batch_rows, metadata.qo_indptr, len(sample_logits))
    return BatchPlan(
        token_ids=rows.tokens.cells[token_lines, metadata.positions],
        logit_rows=np.concatenate([sample_logits, *prompt_logits]),
        metadata=metadata,
        samples=samples,
        prompts=prompts,
    )


def check_plan(plan: StepPlan, batch_rows: Sequence[Row], rows: Rows, *, block_size: int) -> None:
    """Raise ValueError unless every row of the plan stands where the rows stand.

    A row that samples ends at its last known token and its drafts; no other row goes further, and none has drafts.
    """
    lines = [row.line for row in batch_rows]
    known, held = rows.tokens.lengths[lines].tolist(), rows.blocks.lengths[lines].tolist()
    for index, (start, count, samples) in enumerate(zip(plan.starts, plan.num_tokens, plan.samples, strict=True)):
        num_drafts = len(plan.drafts.get(index, ()))
        end, limit = start + count, known[index] + num_drafts
        if start < 0 or count <= num_drafts:
            raise _misfit(plan, index, "computes no known token")
        if num_drafts and not samples:
            raise _misfit(plan, index, "has drafts but does not sample")
        if end > limit or (samples and end < limit):
            raise _misfit(plan, index, "does not end where its tokens end")
        if end > held[index] * block_size:
            raise _misfit(plan, index, "has too few blocks")


def _misfit(plan: StepPlan, index: int, reason: str) -> ValueError:
    return ValueError(f"plan {plan.step}: request {plan.request_ids[index]} {reason}")


def _sample_spans(plan: StepPlan, qo_indptr: IntArray) -> tuple[list[LogitSpan], IntArray]:
    """The spans of the rows that sample, and the flattened tokens [n] that they look at."""
    spans: list[LogitSpan] = []
    logit_rows: list[int] = []
    for index, end in enumerate(qo_indptr[1:].tolist()):
        if plan.samples[index]:
            count = 1 + len(plan.drafts.get(index, ()))
            position = plan.starts[index] + plan.num_tokens[index] - count
            spans.append(LogitSpan(index, len(logit_rows), count, position))
            logit_rows.extend(range(end - count, end))
    return spans, np.array(logit_rows, np.int32)


def _prompt_spans(
    plan: StepPlan, batch_rows: Sequence[Row], qo_indptr: IntArray, first: int
) -> tuple[list[LogitSpan], list[IntArray]]:
    """The spans of the rows that want prompt logprobs, and the flattened tokens that they look at.

    Only positions with a next prompt token count. `first` is the number of logit rows before them.
    """
    spans, logit_rows = [], []
    for index, row in enumerate(batch_rows):
        if row.spec.prompt_logprobs is None:
            continue
        start = plan.starts[index]
        count = min(plan.num_tokens[index], len(row.spec.prompt_token_ids) - 1 - start)
        if count > 0:
            spans.append(LogitSpan(index, first, count, start))
            logit_rows.append(np.arange(count, dtype=np.int32) + qo_indptr[index])
            first += count
    return spans, logit_rows
