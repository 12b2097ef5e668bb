"""The record of what the prefix cache holds, in two halves.

`EventLog` lives on the engine thread: the pool writes into it, and the end of a commit seals what a step did into one
numbered batch. `CacheMirror` lives on the server's thread: it applies the sealed batches in order and answers
every question about the past (deltas, snapshots), so that no reader ever touches the live pool or slows a step.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from itertools import islice

from headstart.contract.events import CacheEvent, Cleared, Digest, EventBatch, Removed, Stored
from headstart.contract.prefix import wire_hash


class EventLog:
    """Events of the step in progress. Owner and only writer: the engine thread.

    A block that is registered and taken back before the seal leaves no trace: its `stored` is retracted.
    """

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(16)
        self.seq = 0
        self._open: list[CacheEvent | None] = []
        self._open_stores: dict[int, int] = {}
        self._count = 0
        self._xor = 0

    @property
    def digest(self) -> Digest:
        """Of the set as of the last seal and all that happened since."""
        return Digest(self._count, self._xor)

    def stored(self, block_hash: bytes, parent: bytes | None) -> None:
        """A block was registered. `parent` is None for the first of a chain."""
        key = wire_hash(block_hash)
        self._open_stores[key] = len(self._open)
        self._open.append(Stored(key, wire_hash(parent) if parent is not None else 0))
        self._count += 1
        self._xor ^= key

    def removed(self, block_hash: bytes) -> None:
        """A registered block lost its hash."""
        key = wire_hash(block_hash)
        position = self._open_stores.pop(key, None)
        if position is None:
            self._open.append(Removed(key))
        else:
            self._open[position] = None
        self._count -= 1
        self._xor ^= key

    def cleared(self) -> None:
        """Every hash is gone."""
        self._open.append(Cleared())
        self._open_stores.clear()
        self._count = self._xor = 0

    def seal(self) -> EventBatch | None:
        """Close the step's events under the next number; None when there were none."""
        if not self._open:
            return None
        events = tuple(event for event in self._open if event is not None)
        self._open.clear()
        self._open_stores.clear()
        if not events:
            return None
        self.seq += 1
        return EventBatch(self.seq, events, self.digest)


class CacheMirror:
    """The sealed batches, applied: what the pod holds at `seq`, and the last `capacity` batches.

    Owner and only writer: the server's event loop. `held` maps a hash to its parent, in the order of storing.
    """

    def __init__(self, epoch: str, *, capacity: int) -> None:
        self.epoch = epoch
        self.seq = 0
        self.digest = Digest(0, 0)
        self.held: dict[int, int] = {}
        self._ring: deque[EventBatch] = deque(maxlen=capacity)

    def apply(self, batch: EventBatch) -> None:
        """Take the next batch. Raises ValueError for any other than `seq + 1`."""
        if batch.seq != self.seq + 1:
            raise ValueError(f"batch {batch.seq} does not follow {self.seq}")
        for event in batch.events:
            if isinstance(event, Stored):
                self.held[event.hash] = event.parent
            elif isinstance(event, Removed):
                self.held.pop(event.hash, None)
            else:
                self.held.clear()
        self.seq = batch.seq
        self.digest = batch.digest
        self._ring.append(batch)

    def since(self, epoch: str, seq: int) -> list[EventBatch] | None:
        """Batches after `seq`, oldest first; None when only a snapshot can help.

        That is: another epoch, a position in the future, or one that is older than the ring.
        """
        if epoch != self.epoch or seq > self.seq:
            return None
        missing = self.seq - seq
        if missing > len(self._ring):
            return None
        return list(self._ring)[len(self._ring) - missing :] if missing else []

    def snapshot(self, chunk_size: int) -> tuple[int, Iterator[tuple[list[int], list[int]]]]:
        """The position and, in chunks, the (hashes, parents) held there. Parents come before their children.

        One copy of the set is taken at once; the chunks are cut from it as they are asked for.
        """
        held = dict(self.held)
        return self.seq, _chunks(_parents_first(held), held, chunk_size)


def _parents_first(held: dict[int, int]) -> Iterator[int]:
    """Every hash of `held`, each after its parent, also where the parent was evicted and stored again later."""
    sent: set[int] = set()
    for key in held:
        chain = []
        while key in held and key not in sent:
            sent.add(key)
            chain.append(key)
            key = held[key]
        yield from reversed(chain)


def _chunks(hashes: Iterator[int], held: dict[int, int], chunk_size: int) -> Iterator[tuple[list[int], list[int]]]:
    while chunk := list(islice(hashes, chunk_size)):
        yield chunk, [held[key] for key in chunk]
