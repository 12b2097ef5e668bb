"""Samples a step's rows on the CPU, and so verifies their drafts.

A row with drafts samples position after position, each with the random number of that position, and goes on while what
it sampled equals the draft: the tokens are those that it would have sampled one step at a time.
Each row is sampled alone, so its result does not depend on the batch, and what goes wrong in it ends only that row.

Does not know the model or the scheduler's stop rules: an end-of-text token inside accepted drafts is the
scheduler's to cut. Keeps nothing between steps.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.contract.request import GenerateSpec, SamplingParams
from headstart.core.step import TokenLogprobs
from headstart.errors import InternalError
from headstart.runner.choice import choose
from headstart.runner.logprobs import NON_FINITE, token_logprobs
from headstart.runner.penalties import add_bias, has_penalties, mask, penalize
from headstart.runner.philox import uniform
from headstart.runner.rows import IntArray

LogitArray = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)


class SampleAsk(NamedTuple):
    """One row to sample: `known` are its token ids [known], logit row `first` belongs to the last of them,
    and the next `len(drafts)` logit rows to the drafts."""

    spec: GenerateSpec
    known: IntArray
    first: int
    drafts: Sequence[int]


class SampledRow(NamedTuple):
    """Accepted drafts and one more token; their logprobs if asked for. With a `fault` there are no tokens.

    `is_poisoned` says that the model's logits are at fault, and not what the request made of them.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    fault: str = ""
    is_poisoned: bool = False


class Sampler:
    """`eos_token_ids` are what a request with `min_tokens` may not produce too early, besides its own stop ids."""

    def __init__(self, eos_token_ids: Collection[int]) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)

    def sample(self, logits: LogitArray, asks: Sequence[SampleAsk]) -> list[SampledRow]:
        """One result for each ask, from `logits` [n, vocab]. Never raises for the sake of one row.

        One argmax over the batch answers all plain greedy rows. It also finds the rows that cannot be sampled: it
        lands on NaN or +inf where there is one, and on -inf only where there is nothing else.
        """
        if not asks:
            return []
        best = np.argmax(logits, axis=1)
        is_finite = np.isfinite(logits[np.arange(len(best)), best])
        step = _Step(logits, best.tolist(), is_finite.tolist(), _random_numbers(asks))
        return [self._contained(step, ask) for ask in asks]

    def _contained(self, step: _Step, ask: SampleAsk) -> SampledRow:
        try:
            return self._sample_row(step, ask)
        except InternalError as error:
            return SampledRow([], [], str(error))
        except Exception:
            _log.exception("request %s: sampling failed", ask.spec.request_id)
            return SampledRow([], [], "sampling failed")

    def _sample_row(self, step: _Step, ask: SampleAsk) -> SampledRow:
        spec = ask.spec
        is_plain = _is_plain_greedy(spec.sampling)
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        num_output = len(ask.known) - len(spec.prompt_token_ids)
        for offset in range(len(ask.drafts) + 1):
            index = ask.first + offset
            if not step.is_finite[index]:
                return SampledRow([], [], NON_FINITE, is_poisoned=True)
            if is_plain and num_output + offset >= spec.min_tokens:
                token_id = step.best[index]
            else:
                scores = self._scores(step.logits[index], ask, token_ids)
                token_id = choose(scores, spec.sampling, step.numbers.get(index, 0.0))
            token_ids.append(token_id)
            if spec.logprobs is not None:
                logprobs.append(token_logprobs(step.logits[index], token_id, spec.logprobs))
            if offset < len(ask.drafts) and token_id != ask.drafts[offset]:
                break
        return SampledRow(token_ids, logprobs)

    def _scores(self, logits: LogitArray, ask: SampleAsk, accepted: list[int]) -> npt.NDArray[np.float64]:
        """Logits [vocab] after bias, penalties and mask, when `accepted` drafts follow the known tokens."""
        spec = ask.spec
        num_prompt = len(spec.prompt_token_ids)
        scores = logits.astype(np.float64)
        add_bias(scores, spec.sampling.logit_bias)
        if has_penalties(spec.sampling):
            history = np.append(ask.known, np.array(accepted, np.int32)) if accepted else ask.known
            penalize(scores, spec.sampling, history, num_prompt)
        if len(ask.known) + len(accepted) - num_prompt < spec.min_tokens:
            mask(scores, self._eos_token_ids | spec.stop_token_ids)
        return scores


class _Step(NamedTuple):
    """What all rows of a step look into, by logit row: logits, argmax, whether that is finite, random numbers."""

    logits: LogitArray
    best: list[int]
    is_finite: list[bool]
    numbers: dict[int, float]


def _is_plain_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature == 0 and not sampling.logit_bias and not has_penalties(sampling)


def _random_numbers(asks: Sequence[SampleAsk]) -> dict[int, float]:
    """The random number of each logit row that draws, keyed by the absolute position of the token to come."""
    draws = [
        (ask.first + offset, ask.spec.sampling.seed, ask.spec.choice_index, len(ask.known) + offset)
        for ask in asks
        if ask.spec.sampling.temperature != 0
        for offset in range(len(ask.drafts) + 1)
    ]
    if not draws:
        return {}
    indices, seeds, choices, positions = zip(*draws, strict=True)
    return dict(zip(indices, uniform(seeds, choices, positions).tolist(), strict=True))
