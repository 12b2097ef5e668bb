"""A pod's cache and its stream without a network: the real log, mirror and codec, and a wire that loses its order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from headstart.cache.log import CacheMirror, EventLog
from headstart.contract import codec
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.pods.replica import OutOfStepError, PodReplica

ROOT = bytes(32)


def identity(epoch: str, *, capacity: int = 64, name: str = "pod-0", uid: str = "") -> PodIdentity:
    return PodIdentity(
        epoch=epoch,
        pod_name=name,
        pod_uid=uid,
        model="m",
        model_fingerprint="f",
        tokenizer_fingerprint="t",
        hash_root_digest="r",
        numerics_id="n",
        block_size=16,
        capacity_blocks=capacity,
        max_num_seqs=8,
        context_length=1024,
        vocab_size=100,
    )


def block_hash(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(24)


class ScriptedPod:
    """One pod of at most `capacity` blocks, whose watch may start anywhere and is read message by message."""

    def __init__(self, *, ring: int = 8, capacity: int = 64) -> None:
        self._ring = ring
        self.capacity = capacity
        self.restart()

    def restart(self) -> None:
        self.log = EventLog()
        self.mirror = CacheMirror(self.log.epoch, capacity=self._ring)
        self.held: dict[bytes, bytes | None] = {}

    def store(self, *numbers: int) -> None:
        for number in numbers:
            digest = block_hash(number)
            if digest not in self.held and len(self.held) < self.capacity:
                parent = next(reversed(self.held), None)
                self.held[digest] = parent
                self.log.stored(digest, parent)

    def evict(self, choose: random.Random) -> None:
        if self.held:
            digest = choose.choice(list(self.held))
            del self.held[digest]
            self.log.removed(digest)

    def reset(self) -> None:
        self.held.clear()
        self.log.cleared()

    def seal(self) -> None:
        batch = self.log.seal()
        if batch is not None:
            self.mirror.apply(batch)

    def watch(self, epoch: str, seq: int) -> Iterator[cache_pb.CacheUpdate]:
        """As the server sends it: endless; each turn brings the client up to date and ends with a heartbeat."""
        mirror = self.mirror
        yield codec.encode_hello(identity(mirror.epoch, capacity=self.capacity))
        while True:
            batches = mirror.since(epoch, seq)
            if batches is None:
                seq, columns = mirror.snapshot(5)
                yield from codec.encode_snapshot(seq, columns)
            for batch in batches or ():
                seq = batch.seq
                yield codec.encode_delta(batch)
            epoch = mirror.epoch
            heartbeat = cache_pb.CacheUpdate(load=cache_pb.Load(seq=seq))
            if seq == mirror.seq:
                heartbeat.digest.CopyFrom(codec.encode_digest(seq, mirror.digest))
            yield heartbeat


class Follower:
    """A replica and the wire to its pod. `lag` messages may be on the wire, and are what faults befall."""

    def __init__(self, pod: ScriptedPod, index: PrefixIndex, uid: str) -> None:
        self.pod = pod
        self.replica = PodReplica(index, uid)
        self.num_resyncs = 0
        self.connect()

    def connect(self) -> None:
        self.wire: list[cache_pb.CacheUpdate] = []
        self.stream = self.pod.watch(*self.replica.begin())

    def send(self, count: int) -> None:
        self.wire += [next(self.stream) for _ in range(count)]

    def disturb(self, choose: random.Random) -> None:
        if not self.wire:
            return
        at = choose.randrange(len(self.wire))
        fault = choose.choice(("drop", "double", "swap"))
        if fault == "drop":
            del self.wire[at]
        elif fault == "double":
            self.wire.insert(choose.randrange(len(self.wire) + 1), self.wire[at])
        else:
            self.wire.insert(choose.randrange(len(self.wire)), self.wire.pop(at))

    def deliver(self) -> None:
        while self.wire:
            try:
                self.replica.take(self.wire.pop(0))
            except OutOfStepError:
                self.num_resyncs += 1
                self.replica.forget_position()
                self.connect()

    def settle(self) -> None:
        """Let it go quiet: what is on the wire arrives, then whole turns of the stream until nothing is out of step."""
        self.deliver()
        for _ in range(3):
            self.send(3 + 2 * (self.pod.capacity // 5 + 1))
            self.deliver()
