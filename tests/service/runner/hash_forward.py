"""A real, tiny model in exact integers: the logits of a token depend on every token before it, through paged K/V.

K/V of a token is a hash of (id, position); the context of a query is the sum of those that it may see, read through
the page table; logits are hashes of the context. A wrong slot, page, position or mask changes the logits; storage that
was never written holds poison. Integer sums have no rounding, so any batch gives the same bits.
"""

from __future__ import annotations

import numpy as np

_POISON = np.uint64(0xDEADBEEFDEADBEEF)


def mix(words: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 on uint64 words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class HashForward:
    """`spread` is how far apart logits lie: they are uniform in [0, spread). With a `window` the context is only the
    last so many tokens, whatever their positions: greedy text then falls into a cycle, and lookup drafts are right."""

    def __init__(self, *, vocab_size, num_blocks, block_size, spread=6.0, window=None):
        self.vocab_size = vocab_size
        self.kv = np.full((num_blocks + 1) * block_size, _POISON)
        self.spread = spread
        self.window = window
        self.batch_sizes = []
        self.poisoned_tokens = set()
        self.error = None

    def forward(self, token_ids, metadata, logit_rows):
        if self.error is not None:
            raise self.error
        self.batch_sizes.append(len(token_ids))
        keys = mix(token_ids.astype(np.uint64) * np.uint64(1_000_003) + metadata.positions.astype(np.uint64))
        if self.window is not None:
            keys = mix(token_ids.astype(np.uint64))
        is_written = metadata.slots >= 0
        self.kv[metadata.slots[is_written]] = keys[is_written]
        contexts = np.zeros(len(token_ids), np.uint64)
        for row in range(metadata.num_rows):
            self._attend(row, metadata, contexts)
        logits = mix(contexts[logit_rows, None] + np.arange(self.vocab_size, dtype=np.uint64)[None, :] * _POISON)
        logits = (logits >> np.uint64(40)).astype(np.float32) * np.float32(self.spread / 2**24)
        logits[np.isin(token_ids[logit_rows], list(self.poisoned_tokens))] = np.nan
        return logits

    def _attend(self, row, metadata, contexts):
        start, end = metadata.qo_indptr[row], metadata.qo_indptr[row + 1]
        pages = metadata.kv_indices[metadata.kv_indptr[row] : metadata.kv_indptr[row + 1]].astype(np.int64)
        size = metadata.page_size
        keys = self.kv.reshape(-1, size)[pages].reshape(-1)[: metadata.seq_lens[row]]
        totals = np.cumsum(keys, dtype=np.uint64)
        if self.window is not None:
            totals[self.window :] -= totals[: -self.window].copy()
        contexts[start:end] = totals[metadata.positions[start:end]]
