"""What happens to a pod's set of cached blocks, as values. Hashes are the 64 bits of `prefix.wire_hash`."""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """A block is cached from now on. `parent` is the block before it, 0 for the first of a chain."""

    hash: int
    parent: int


class Removed(NamedTuple):
    """The hash is gone from this pod: a lookup no longer hits it."""

    hash: int


class Cleared(NamedTuple):
    """All hashes are gone."""


CacheEvent = Stored | Removed | Cleared


class Digest(NamedTuple):
    """Of a hash set: how many, and the xor of them all. Equal digests mean equal sets, but for chance."""

    num_hashes: int
    xor: int


class EventBatch(NamedTuple):
    """One step's events in order, and the digest of the set after them. Batches are numbered without gaps."""

    seq: int
    events: tuple[CacheEvent, ...]
    digest: Digest
