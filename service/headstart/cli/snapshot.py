"""One snapshot of a pod's cached hashes, for the commands that look into caches."""

from __future__ import annotations

from typing import NamedTuple

from headstart.contract.proto import prefix_cache_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2_grpc as rpc


class Held(NamedTuple):
    """A pod's cached blocks at one moment: hash -> parent, and what the pod says of itself."""

    hello: pb.Hello
    seq: int
    parents: dict[int, int]


def read_snapshot(stub: rpc.PrefixCacheStub, timeout: float | None) -> Held:
    """All hashes that the pod holds now; the stream is closed after the snapshot's last chunk."""
    updates = stub.Watch(pb.WatchRequest(), timeout=timeout)
    hello = pb.Hello()
    parents: dict[int, int] = {}
    seq = 0
    for update in updates:
        if update.HasField("hello"):
            hello = update.hello
        elif update.HasField("snapshot"):
            parents.update(zip(update.snapshot.hashes, update.snapshot.parents, strict=True))
            seq = update.snapshot.seq
            if update.snapshot.last:
                break
    updates.cancel()
    return Held(hello, seq, parents)
