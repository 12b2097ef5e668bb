"""Hashes of a prompt's blocks, with those of prefixes that came lately at hand.

Prompts begin like earlier ones: a chain of 500 hashes is some 0.2 ms of processor time, and 8 look-ups are a tenth of
it. A segment's hashes hang on its tokens, on what came before and on the extras, so no tenant's are found for
another's tokens. Knows nothing of pods. Owner of its state: the catalog.
"""

from __future__ import annotations

from array import array
from functools import lru_cache

from headstart.contract.prefix import block_hashes, wire_hashes

_SEGMENT_BLOCKS = 64
_MAX_SEGMENTS = 1024
"""Some 8 KB each with blocks of 16 tokens: their tokens and hashes."""


class PrefixHasher:
    """May be used from several threads at once."""

    def __init__(self) -> None:
        self._hash_segment = lru_cache(_MAX_SEGMENTS)(_hash_segment)

    def hashes(self, root: bytes, token_ids: array[int], block_size: int, extras: bytes) -> list[int]:
        """Of the full blocks of an `array("I")` of ids, as they travel: `wire_hashes` of `block_hashes`."""
        num_bytes = len(token_ids) // block_size * block_size * token_ids.itemsize
        step = _SEGMENT_BLOCKS * block_size * token_ids.itemsize
        packed = token_ids.tobytes()
        parent = root
        found: list[int] = []
        for start in range(0, num_bytes, step):
            hashes, parent = self._hash_segment(
                parent, extras, packed[start : min(start + step, num_bytes)], block_size
            )
            found += hashes
        return found


def _hash_segment(parent: bytes, extras: bytes, packed: bytes, block_size: int) -> tuple[tuple[int, ...], bytes]:
    """Of the blocks that come after `parent`, and the digest of the last one."""
    digests = block_hashes(parent, array("I", packed), block_size, extras)
    return tuple(wire_hashes(digests)), digests[-1]
