"""Hashes of a prompt's blocks, with those of prefixes that came lately at hand.

Prompts begin like earlier ones: a chain of 500 hashes is some 0.2 ms of processor time, and 8 look-ups are a tenth of
it. A segment's hashes hang on its tokens, on what came before and on the extras, so no tenant's are found for
another's tokens. Knows nothing of pods. Owner of its state: the catalog.
"""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict

from headstart.contract.prefix import DIGEST_BYTES, block_hashes, joined_wire_hashes

_SEGMENT_BLOCKS = 64
_MAX_SEGMENTS = 1024
"""Some 6 KB each with blocks of 16 tokens: their tokens and digests."""


class PrefixHasher:
    """May be used from several threads at once."""

    def __init__(self) -> None:
        # Bytes to bytes, of which the garbage collector knows nothing: it would hold up every hundredth decision.
        self._known: OrderedDict[bytes, bytes] = OrderedDict()

    def hashes(self, root: bytes, token_ids: array[int], block_size: int, extras: bytes) -> list[int]:
        """Of the full blocks of an `array("I")` of ids, as they travel: `wire_hashes` of `block_hashes`."""
        num_bytes = len(token_ids) // block_size * block_size * token_ids.itemsize
        step = _SEGMENT_BLOCKS * block_size * token_ids.itemsize
        packed = token_ids.tobytes()
        shape = struct.pack("<II", block_size, len(extras)) + extras
        parent = root
        digests = []
        for start in range(0, num_bytes, step):
            segment = packed[start : min(start + step, num_bytes)]
            key = parent + shape + segment
            found = self._known.pop(key, None)
            if found is None:
                found = b"".join(block_hashes(parent, array("I", segment), block_size, extras))
            self._known[key] = found  # the last one to be forgotten now
            digests.append(found)
            parent = found[-DIGEST_BYTES:]
        while len(self._known) > _MAX_SEGMENTS:
            self._known.popitem(last=False)
        return joined_wire_hashes(b"".join(digests))
