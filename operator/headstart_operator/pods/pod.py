"""A pod that is being followed: what discovery says of it, its stream, and the view that both give.

Knows nothing of other pods. Owner of its state: the fleet.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import grpc.aio
from headstart.contract.prefix import hash_root
from headstart.contract.proto import prefix_cache_pb2

from headstart_operator.decision.identity import GroupKey, PodKey, PodRef
from headstart_operator.decision.placements import Placements
from headstart_operator.decision.view import PodView
from headstart_operator.pods.subscriber import Subscriber

PodState = Literal["candidate", "draining", "lost", "other", "starting"]
"""A pod is lost that should serve and does not talk to the router; one of another model than its pool's is other."""


@dataclass(slots=True, eq=False)
class FollowedPod:
    """`root` is that of the process whose epoch is `root_epoch`. `view` is None while the pod is no candidate."""

    ref: PodRef
    channel: grpc.aio.Channel
    subscriber: Subscriber
    placements: Placements
    task: asyncio.Task[None] | None = None
    root: bytes | None = None
    root_epoch: str = ""
    view: PodView | None = None
    _description: _Description | None = None

    def touch(self) -> None:
        """Its load, its state or its placements changed. The view is made now, so that no decision waits for it."""
        self.view = self._make_view() if self.is_candidate else None

    @property
    def is_wanted(self) -> bool:
        """Whether discovery would have requests sent there."""
        return self.ref.is_wanted

    @property
    def lost_s(self) -> float:
        """When its stream broke off that was well, on the event loop's clock; long ago when it did not."""
        lost_s = self.subscriber.lost_s
        return -math.inf if lost_s is None else lost_s

    @property
    def group(self) -> GroupKey | None:
        """None until it has said what it is."""
        described = self._describe()
        return None if described is None else described.group

    @property
    def fits(self) -> bool:
        """Whether it serves the model that its pool is for."""
        described = self._describe()
        return described is not None and described.fits

    @property
    def is_candidate(self) -> bool:
        subscriber, replica = self.subscriber, self.subscriber.replica
        is_talking = subscriber.is_live and replica.is_synced and not replica.load.draining
        return is_talking and self.is_wanted and self.fits

    @property
    def state(self) -> PodState:
        """What it is to requests, in one word."""
        subscriber = self.subscriber
        if self.is_candidate:
            return "candidate"
        if self.ref.is_terminating or (subscriber.is_live and subscriber.replica.load.draining):
            return "draining"
        if not self.ref.is_ready or subscriber.replica.is_arriving:
            return "starting"
        return "other" if subscriber.is_live else "lost"

    def _make_view(self) -> PodView:
        described = self._describe()
        assert described is not None, "a candidate has said what it is"
        placed = self.placements.of(described.facts[0])
        return PodView(
            *described.facts,
            self.subscriber.replica.load,
            placed.num_in_flight,
            placed.num_pending,
            placed.tokens,
            placed.blocks,
            self.root,
            self.channel,
            self.subscriber.silence,
            placed.num_in_flight < described.max_in_flight,
        )

    def _describe(self) -> _Description | None:
        """Read from its hello once: views are made with every load."""
        hello, ref, described = self.subscriber.replica.hello, self.ref, self._description
        if hello is None:
            return None
        if described is None or described.hello is not hello or described.ref is not ref:
            described = self._description = _describe(hello, ref)
        return described


class _Description(NamedTuple):
    """`facts` are a view's first fields, which stay the same while `hello` and `ref` do."""

    hello: prefix_cache_pb2.Hello
    ref: PodRef
    group: GroupKey
    fits: bool
    max_in_flight: int
    facts: tuple[PodKey, str, str, GroupKey, str, int, int, int]


def _describe(hello: prefix_cache_pb2.Hello, ref: PodRef) -> _Description:
    group = GroupKey(hello.model, hello.tokenizer_fingerprint, hello.hash_root_digest, ref.pool)
    facts = (
        PodKey(ref.uid, hello.epoch),
        hello.pod_name or ref.name,
        ref.address,
        group,
        hello.numerics_id,
        hello.block_size,
        hello.capacity_blocks,
        hello.max_num_seqs,
    )
    # A little more than it runs at once, so that it never waits for us.
    max_in_flight = max(1, hello.max_num_seqs * 5 // 4)
    return _Description(hello, ref, group, ref.model in ("", group.model), max_in_flight, facts)


def derive_root(hello: prefix_cache_pb2.Hello, fleet_secret: bytes) -> bytes | None:
    """The pod's hash root, or None when this secret does not give it."""
    root = hash_root(hello.hash_root_fields, fleet_secret)
    return root if hashlib.sha256(root).hexdigest() == hello.hash_root_digest else None
