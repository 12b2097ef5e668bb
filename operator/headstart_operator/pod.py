"""A pod that is being followed: what discovery says of it, its stream, and the view that both give.

Knows nothing of other pods. Owner of its state: the fleet.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field

import grpc.aio
from headstart.contract.prefix import hash_root
from headstart.contract.proto import prefix_cache_pb2

from headstart_operator.identity import GroupKey, PodRef
from headstart_operator.placements import PodPlacements
from headstart_operator.subscriber import Subscriber
from headstart_operator.view import PodView


@dataclass(slots=True, eq=False)
class FollowedPod:
    """`root` is that of the process whose epoch is `root_epoch`."""

    ref: PodRef
    channel: grpc.aio.Channel
    subscriber: Subscriber
    task: asyncio.Task[None] | None = None
    root: bytes | None = None
    root_epoch: str = ""
    _view: PodView | None = None
    _is_stale: bool = field(default=True)

    def touch(self) -> None:
        """Its load, its state or its placements changed."""
        self._is_stale = True

    @property
    def is_wanted(self) -> bool:
        """Whether discovery would have requests sent there."""
        return self.ref.is_ready and not self.ref.is_terminating

    @property
    def group(self) -> GroupKey | None:
        """None until it has said what it is."""
        hello = self.subscriber.replica.hello
        if hello is None:
            return None
        return GroupKey(hello.model, hello.tokenizer_fingerprint, hello.hash_root_digest, self.ref.pool)

    @property
    def fits(self) -> bool:
        """Whether it serves the model that its pool is for."""
        return self.group is not None and self.ref.model in ("", self.group.model)

    @property
    def is_candidate(self) -> bool:
        replica = self.subscriber.replica
        is_talking = self.subscriber.is_live and replica.is_synced and not replica.load.draining
        return self.is_wanted and is_talking and self.fits

    def view(self, placed: PodPlacements) -> PodView | None:
        """None while it is no candidate."""
        if self._is_stale:
            self._is_stale = False
            self._view = self._make_view(placed) if self.is_candidate else None
        return self._view

    def _make_view(self, placed: PodPlacements) -> PodView:
        replica, group = self.subscriber.replica, self.group
        hello = replica.hello
        assert hello is not None and group is not None, "a synced replica has heard its hello"  # noqa: PT018
        return PodView(
            key=replica.key,
            name=hello.pod_name or self.ref.name,
            address=self.ref.address,
            group=group,
            numerics_id=hello.numerics_id,
            block_size=hello.block_size,
            capacity_blocks=hello.capacity_blocks,
            max_num_seqs=hello.max_num_seqs,
            load=replica.load,
            num_in_flight=placed.num_in_flight,
            num_pending=placed.num_pending,
            pending_tokens=placed.tokens,
            pending_blocks=placed.blocks,
            hash_root=self.root,
            channel=self.channel,
            silence=self.subscriber.silence,
        )


def derive_root(hello: prefix_cache_pb2.Hello, fleet_secret: bytes) -> bytes | None:
    """The pod's hash root, or None when this secret does not give it."""
    root = hash_root(hello.hash_root_fields, fleet_secret)
    return root if hashlib.sha256(root).hexdigest() == hello.hash_root_digest else None
