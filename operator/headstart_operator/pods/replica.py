"""One pod's cache as its stream tells it: takes updates in any shape a stream can get into, and keeps the index exact.

A gap, a digest that does not match or a snapshot that breaks off ends in `OutOfStepError`: then only a snapshot helps.
What was already taken is skipped. Knows nothing of connections. Owner of its state: the pod's subscriber.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from headstart.contract.codec import LoadFields, decode_delta, decode_load
from headstart.contract.events import Cleared, Digest, Stored
from headstart.contract.proto import prefix_cache_pb2

from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.view import NO_LOAD

Resync = Literal[
    "behind", "capacity", "digest", "epoch", "gap", "no_hello", "other_pod", "snapshot", "stream", "unknown_event"
]
"""Why a snapshot is needed that is not the pod's first.

The pod sends three unasked: `epoch`, it is a new process; `behind`, it no longer has what was missed; `stream`, the
last snapshot broke off. The others we ask for.
"""


class OutOfStepError(Exception):
    """This replica cannot go on from where it is."""

    def __init__(self, reason: Resync) -> None:
        super().__init__(reason)
        self.reason = reason


class PodReplica:
    """`is_synced` from the end of the first snapshot of the pod's process on; `load` is the newest that was told.

    `resyncs` counts the snapshots that nobody here asked for.
    """

    def __init__(self, index: PrefixIndex, uid: str, *, resyncs: Counter[Resync] | None = None) -> None:
        self._index = index
        self._uid = uid
        self._resyncs: Counter[Resync] = Counter() if resyncs is None else resyncs
        self._next_resync: Resync | None = (
            None  # what a snapshot would mean now; None when it is the first or asked for
        )
        self._snapshot_seq: int | None = None
        self._needs_snapshot = True
        self._has_hello = False
        self.hello: prefix_cache_pb2.Hello | None = None
        self.key = PodKey(uid, "")
        self.seq = 0
        self.load = NO_LOAD
        self.is_synced = False

    @property
    def is_exact(self) -> bool:
        """Whether the index holds what the pod held at `seq`: not before a snapshot, nor while one is awaited."""
        return self.is_synced and not self._needs_snapshot and self._snapshot_seq is None

    @property
    def is_arriving(self) -> bool:
        """Whether the pod's process has said hello and its first snapshot is not here yet."""
        return self._has_hello and not self.is_synced

    def begin(self) -> tuple[str, int]:
        """A new stream: it must start with a hello. The epoch and seq to resume from; ("", 0) for a snapshot."""
        self._has_hello = False
        if self._snapshot_seq is not None:
            self._next_resync = "stream"
        self._snapshot_seq = None
        return ("", 0) if self._needs_snapshot else (self.key.epoch, self.seq)

    def take(self, update: prefix_cache_pb2.CacheUpdate) -> tuple[str, ...]:
        """Apply one message; the request ids that the pod says it has taken in. Raises OutOfStepError."""
        kind = update.WhichOneof("update")
        if kind == "hello":
            self._take_hello(update.hello)
        elif not self._has_hello:
            raise OutOfStepError("no_hello")
        elif kind == "snapshot":
            self._take_snapshot(update.snapshot)
        elif kind == "delta":
            self._take_delta(update.delta)
        if update.HasField("digest"):
            self._check_digest(update.digest)
        return self._take_load(decode_load(update.load)) if update.HasField("load") else ()

    def forget_position(self) -> None:
        """Ask for a snapshot next time. What is held stays until it comes: stale, but better than nothing."""
        self._needs_snapshot = True
        self._snapshot_seq = None
        self._next_resync = None

    def drop(self) -> None:
        """Forget all of the pod."""
        self._index.drop(self.key)
        self.forget_position()
        self.is_synced = False
        self.hello = None
        self.key = PodKey(self._uid, "")
        self.seq = 0
        self.load = NO_LOAD

    def _take_hello(self, hello: prefix_cache_pb2.Hello) -> None:
        if hello.epoch != self.key.epoch:
            is_restarted = self.is_synced
            self.drop()
            self._next_resync = "epoch" if is_restarted else None
            self.key = PodKey(self._uid, hello.epoch)
        self.hello = hello
        self._has_hello = True

    def _take_snapshot(self, chunk: prefix_cache_pb2.SnapshotChunk) -> None:
        if self._snapshot_seq is None:
            if self._next_resync is not None:
                self._resyncs[self._next_resync] += 1
            self._index.apply(self.key, (Cleared(),))
            self._snapshot_seq = chunk.seq
        elif chunk.seq != self._snapshot_seq:
            raise OutOfStepError("snapshot")
        if len(chunk.hashes) != len(chunk.parents):
            raise OutOfStepError("snapshot")
        self._index.apply(self.key, map(Stored, chunk.hashes, chunk.parents))
        self._check_capacity()
        if chunk.last:
            self.seq = chunk.seq
            self._snapshot_seq = None
            self._needs_snapshot = False
            self._next_resync = "behind"
            self.is_synced = True

    def _take_delta(self, delta: prefix_cache_pb2.Delta) -> None:
        if self._snapshot_seq is not None or self._needs_snapshot:
            raise OutOfStepError("snapshot")
        if delta.seq <= self.seq:
            return
        if delta.prev_seq != self.seq:
            raise OutOfStepError("gap")
        try:
            events = decode_delta(delta)
        except ValueError as error:
            raise OutOfStepError("unknown_event") from error
        self._index.apply(self.key, events)
        self.seq = delta.seq
        self._check_capacity()

    def _check_digest(self, digest: prefix_cache_pb2.Digest) -> None:
        if self._snapshot_seq is not None or self._needs_snapshot:
            raise OutOfStepError("snapshot")
        if digest.seq > self.seq:
            raise OutOfStepError("gap")
        if digest.seq == self.seq and self._index.digest(self.key) != Digest(digest.count, digest.xor):
            raise OutOfStepError("digest")

    def _check_capacity(self) -> None:
        """One hash names one block, so a pod cannot hold more of them than blocks."""
        assert self.hello is not None
        if self._index.digest(self.key).num_hashes > self.hello.capacity_blocks:
            raise OutOfStepError("capacity")

    def _take_load(self, load: LoadFields) -> tuple[str, ...]:
        if load.seq >= self.load.seq:
            self.load = load
        return tuple(load.accepted)
