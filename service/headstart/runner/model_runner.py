"""Runs a step with a model: rows, batch, forward pass, sampling, output.

Does not know what the forward pass is written in, nor where its weights and K/V live. Owner of the rows; called from
the engine thread only.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from headstart_kernels.metadata import AttentionMetadata

from headstart.core.step import StepOutput, StepPlan, TokenLogprobs
from headstart.errors import InternalError
from headstart.runner.batch import BatchPlan, LogitSpan, build_batch
from headstart.runner.drafts import propose
from headstart.runner.logprobs import token_logprobs
from headstart.runner.rows import IntArray, Row, Rows
from headstart.runner.runner import InFlight
from headstart.runner.sampler import LogitArray, SampleAsk, SampledRow, Sampler

BAD_DRAFT = "draft token id out of range"


class Forward(Protocol):
    """One pass over a flattened batch. Owns weights and K/V storage."""

    vocab_size: int

    def forward(
        self, token_ids: IntArray, metadata: AttentionMetadata, logit_rows: IntArray
    ) -> npt.NDArray[np.float32]:
        """Write K/V of `token_ids` [tokens] and return the logits [n, vocab] of the tokens `logit_rows` [n].

        Checks whatever it would read blindly: raises ValueError that begins with the name of the argument.
        """
        ...


class ModelRunner:
    """`num_drafts` is how many guesses a row may get for its next step: 0 is off."""

    def __init__(
        self,
        forward: Forward,
        *,
        block_size: int,
        eos_token_ids: Collection[int],
        num_drafts: int = 0,
    ) -> None:
        self._forward = forward
        self._block_size = block_size
        self._num_drafts = num_drafts
        self._sampler = Sampler(eos_token_ids)
        self._rows = Rows()

    def submit(self, plan: StepPlan) -> InFlight:
        """Run the whole step; what goes wrong is raised by `result()`."""
        done: Future[StepOutput] = Future()
        try:
            done.set_result(self._run(plan))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run(self, plan: StepPlan) -> StepOutput:
        rows = self._rows.apply(plan)
        if not rows:
            return StepOutput(sampled=[])
        plan, faults = self._without_bad_drafts(plan)
        batch = build_batch(plan, rows, self._rows, block_size=self._block_size)
        logits = self._logits(batch)
        output = StepOutput(sampled=[[] for _ in rows], faults=faults)
        poisoned = self._score_prompts(batch, logits, rows, output)
        poisoned |= self._sample(batch, plan, logits, rows, output)
        return replace(output, poisoned=frozenset(poisoned)) if poisoned else output

    def _without_bad_drafts(self, plan: StepPlan) -> tuple[StepPlan, dict[int, str]]:
        """A draft that is no token id ends its row; id 0 stands in for it, so that the others' step can run."""
        vocab_size = self._forward.vocab_size
        bad = [
            index for index, drafts in plan.drafts.items() if not all(0 <= token_id < vocab_size for token_id in drafts)
        ]
        if not bad:
            return plan, {}
        drafts = plan.drafts | {index: [0] * len(plan.drafts[index]) for index in bad}
        return replace(plan, drafts=drafts), dict.fromkeys(bad, BAD_DRAFT)

    def _logits(self, batch: BatchPlan) -> LogitArray:
        vocab_size = self._forward.vocab_size
        if batch.token_ids.min() < 0 or batch.token_ids.max() >= vocab_size:
            raise ValueError(f"token ids must lie in [0, {vocab_size})")
        logits = self._forward.forward(batch.token_ids, batch.metadata, batch.logit_rows)
        if logits.shape != (len(batch.logit_rows), vocab_size):
            raise ValueError(f"the forward pass returned logits of shape {logits.shape}")
        return logits

    def _score_prompts(self, batch: BatchPlan, logits: LogitArray, rows: list[Row], output: StepOutput) -> set[int]:
        """Fill in the prompt logprobs; returns the poisoned rows. One position at a time: no second copy of the logits
        is made."""
        poisoned = set()
        for span in batch.prompts:
            try:
                output.prompt_logprobs[span.row] = _prompt_logprobs(span, logits, rows[span.row])
            except InternalError as error:
                output.faults[span.row] = str(error)
                poisoned.add(span.row)
        return poisoned

    def _sample(
        self, batch: BatchPlan, plan: StepPlan, logits: LogitArray, rows: list[Row], output: StepOutput
    ) -> set[int]:
        """Fill in tokens, logprobs and drafts, and append the tokens to the rows; returns the poisoned rows."""
        spans = [span for span in batch.samples if span.row not in output.faults]
        asks = [
            SampleAsk(
                rows[span.row].spec,
                self._rows.known(rows[span.row]),
                span.first,
                plan.drafts.get(span.row, ()),
            )
            for span in spans
        ]
        results = self._sampler.sample(logits[: batch.num_sample_logits], asks)
        for span, result in zip(spans, results, strict=True):
            if result.fault:
                output.faults[span.row] = result.fault
            else:
                self._accept(span.row, rows[span.row], result, output)
        return {span.row for span, result in zip(spans, results, strict=True) if result.is_poisoned}

    def _accept(self, index: int, row: Row, result: SampledRow, output: StepOutput) -> None:
        self._rows.tokens.append(row.line, result.token_ids)
        output.sampled[index] = result.token_ids
        if result.logprobs:
            output.logprobs[index] = result.logprobs
        if self._num_drafts:
            known = self._rows.known(row)
            num_output = len(known) - len(row.spec.prompt_token_ids)
            # The step that verifies k drafts yields up to k + 1 tokens.
            num_useful = min(self._num_drafts, row.spec.max_tokens - num_output - 1)
            drafts = propose(known, num_useful)
            if drafts:
                output.drafts[index] = drafts


def _prompt_logprobs(span: LogitSpan, logits: LogitArray, row: Row) -> list[TokenLogprobs]:
    prompt = row.spec.prompt_token_ids
    num_top = row.spec.prompt_logprobs or 0
    return [
        token_logprobs(logits[span.first + offset], prompt[span.position + offset + 1], num_top)
        for offset in range(span.num_logits)
    ]
