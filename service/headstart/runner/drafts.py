"""Guesses for a row's next tokens from its own text: where its last few tokens stood before, what came after.

Prompt lookup decoding (Saxena, "Prompt Lookup Decoding", 2023). Costs no model; verification decides what is kept.
Knows nothing of requests or plans. Owns no state.
"""

from __future__ import annotations

import numpy as np

from headstart.runner.rows import IntArray

MAX_NGRAM = 4
MIN_NGRAM = 2


def propose(token_ids: IntArray, max_drafts: int, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM) -> list[int]:
    """Up to `max_drafts` guesses of what follows `token_ids` [known]; empty when nothing repeats.

    The longest suffix of `min_ngram .. max_ngram` tokens that occurs earlier decides, its most recent occurrence first.
    When the text after it ends too soon, the guess goes on as if the text repeated with that period.
    """
    last = len(token_ids) - 1
    if max_drafts <= 0 or last < 1:
        return []
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])
    length = 1
    while length < max_ngram:
        longer = ends[ends >= length]
        longer = longer[token_ids[longer - length] == token_ids[last - length]]
        if not len(longer):
            break
        ends = longer
        length += 1
    if length < min_ngram or not len(ends):
        return []
    end = int(ends[-1])
    offsets = np.arange(max_drafts) % (last - end)
    guesses: list[int] = token_ids[end + 1 + offsets].tolist()
    return guesses
