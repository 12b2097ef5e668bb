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
from weakref import WeakSet

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
        self._snapshots: WeakSet[_Frozen] = WeakSet()

    def apply(self, batch: EventBatch) -> None:
        """Take the next batch. Raises ValueError for any other than `seq + 1`."""
        if batch.seq != self.seq + 1:
            raise ValueError(f"batch {batch.seq} does not follow {self.seq}")
        for event in batch.events:
            if isinstance(event, Stored):
                for snapshot in self._snapshots:
                    snapshot.note_stored(event.hash)
                self.held[event.hash] = event.parent
            elif isinstance(event, Removed):
                for snapshot in self._snapshots:
                    snapshot.note_removed(event.hash)
                self.held.pop(event.hash, None)
            else:
                self.held = {}  # a snapshot in progress keeps the old one
                self._snapshots.clear()
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
        # Watchers ask after every step: what it costs goes by what is new, not by what the ring holds.
        return list(islice(reversed(self._ring), missing))[::-1]

    def snapshot(self, chunk_size: int) -> tuple[int, Iterator[tuple[list[int], list[int]]]]:
        """The position and, in chunks, the (hashes, parents) held there. Parents come before their children.

        Only the list of hashes is copied at once, which takes well under a millisecond for 100,000 of them; the rest is
        looked up as the chunks are asked for, however far the mirror has gone on by then.
        """
        frozen = _Frozen(self.held)
        self._snapshots.add(frozen)
        return self.seq, frozen.chunks(chunk_size)


class _Frozen:
    """What a mirror held at one moment. The mirror goes on and tells it what it removes and stores meanwhile.

    A hash never changes its parent, so it does not matter when the parent is looked up.
    """

    def __init__(self, held: dict[int, int]) -> None:
        self._held = held
        self._hashes = list(held)
        self._gone: dict[int, int] = {}
        self._new: set[int] = set()

    def note_stored(self, key: int) -> None:
        if key not in self._gone and key not in self._held:
            self._new.add(key)

    def note_removed(self, key: int) -> None:
        if key in self._new:
            self._new.remove(key)
        elif key in self._held:
            self._gone[key] = self._held[key]

    def chunks(self, chunk_size: int) -> Iterator[tuple[list[int], list[int]]]:
        """(hashes, parents) in pieces."""
        hashes = self._parents_first()
        while chunk := list(islice(hashes, chunk_size)):
            yield chunk, [self._parent(key) or 0 for key in chunk]

    def _parent(self, key: int) -> int | None:
        """None for what was not held then."""
        if key in self._gone:
            return self._gone[key]
        return None if key in self._new else self._held.get(key)

    def _parents_first(self) -> Iterator[int]:
        """Every hash after its parent, also where the parent was evicted and stored again later."""
        # Nothing here may grow or go in one piece: to resize a set of 100,000 entries, or to free it, holds up the
        # engine's thread for milliseconds. So there are many small sets, and all is given back bit by bit.
        sent: list[set[int]] = [set() for _ in range(256)]
        hashes = self._hashes
        hashes.reverse()
        while hashes:
            key = hashes.pop()
            chain = []
            while key not in sent[key & 255] and (parent := self._parent(key)) is not None:
                sent[key & 255].add(key)
                chain.append(key)
                key = parent
            yield from reversed(chain)
        while sent:
            sent.pop()
