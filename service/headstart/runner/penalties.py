"""What changes the logits before a token is chosen: bias, penalties, the `min_tokens` mask, in this order.

Everything is worked out from the whole token list each time. There is no count to keep, to roll back after a rejected
draft, or to leave behind in a slot. The formulas are vLLM's: repetition looks at prompt and output, presence and
frequency at the output only.

Knows nothing of batches or randomness. Owns no state.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headstart.contract.request import SamplingParams
from headstart.runner.choice import FloatArray
from headstart.runner.rows import IntArray

_LARGEST = np.finfo(np.float64).max


def add_bias(scores: FloatArray, logit_bias: Iterable[tuple[int, float]]) -> None:
    """Add each (token id, bias) to `scores` [vocab] in place."""
    for token_id, bias in logit_bias:
        scores[token_id] += bias


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether the token list matters for the scores at all."""
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def penalize(scores: FloatArray, sampling: SamplingParams, token_ids: IntArray, num_prompt: int) -> None:
    """Apply the three penalties to `scores` [vocab] in place. `token_ids`: `num_prompt` of the prompt, then the output.

    Repetition (Keskar et al., CTRL, 2019) divides positive scores and multiplies negative ones; presence subtracts once
    per token that was generated, frequency once per time. A finite score stays finite, whatever the penalty: only the
    model can forbid a token or say something that is no number.
    """
    if sampling.repetition_penalty != 1:
        # An id that occurs twice is written twice with the same value.
        seen = scores[token_ids]
        penalty = sampling.repetition_penalty
        with np.errstate(over="ignore"):
            scaled = np.where(seen > 0, seen / penalty, seen * penalty)
        scores[token_ids] = np.where(np.isfinite(seen), np.clip(scaled, -_LARGEST, _LARGEST), seen)
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids, counts = np.unique(token_ids[num_prompt:], return_counts=True)
        scores[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def mask(scores: FloatArray, token_ids: Iterable[int]) -> None:
    """Forbid `token_ids` in `scores` [vocab], in place."""
    for token_id in token_ids:
        scores[token_id] = -np.inf
