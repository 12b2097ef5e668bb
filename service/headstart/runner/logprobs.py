"""Log probabilities that are reported, not sampled from: of the raw logits, before bias, penalties and temperature.

So a reported value says what the model thinks, and is the same for greedy and sampled requests. Owns no state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstart.core.step import TokenLogprobs
from headstart.errors import InternalError
from headstart.runner.choice import largest

NON_FINITE = "non-finite logits"
"""Of the model's own: what the row computed, or read, is not to be trusted."""

LOGPROB_FLOOR = -9999.0
"""What is reported for less: JSON knows no infinity."""


def token_logprobs(logits: npt.NDArray[np.float32], token_id: int, num_top: int) -> TokenLogprobs:
    """Score `token_id` by the log-softmax of `logits` [vocab], with the `num_top` most likely ids, best first.

    Among equals the lowest id comes first. Raises InternalError for NaN, +inf, or nothing but -inf.
    """
    scores = logits.astype(np.float64)
    peak = scores.max()
    if not np.isfinite(peak):
        raise InternalError(NON_FINITE)
    scores -= peak
    with np.errstate(under="ignore"):
        scores -= np.log(np.exp(scores).sum())
    top_ids = largest(scores, num_top) if num_top else np.arange(0)
    top_ids = top_ids[np.argsort(-scores[top_ids], kind="stable")]
    return TokenLogprobs(
        token_id=token_id,
        logprob=max(float(scores[token_id]), LOGPROB_FLOOR),
        top_ids=top_ids.tolist(),
        top_logprobs=np.maximum(scores[top_ids], LOGPROB_FLOOR).tolist(),
    )
