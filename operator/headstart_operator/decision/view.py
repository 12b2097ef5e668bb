"""What a routing decision may know of a pod, frozen, as of one moment."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import grpc.aio
from headstart.contract.codec import LoadFields

from headstart_operator.decision.identity import GroupKey, PodKey

NO_LOAD = LoadFields(
    seq=0,
    running=0,
    waiting=0,
    pending_prefill_tokens=0,
    accepted=(),
    free_blocks=0,
    prefill_tokens_per_s=0.0,
    decode_step_s=0.0,
    step_age_s=0.0,
    draining=False,
)


class PodView(NamedTuple):
    """A pod that may be given requests, and how busy it is.

    `pending_tokens`, `pending_blocks` and `num_pending` sum up our own placements that the pod has not confirmed yet:
    its load does not count them. `num_in_flight` counts all our placements that have not ended; while the pod
    `has_room` it may be given one more, else that waits here and may still go elsewhere. `silence` is set when
    the pod's stream has gone quiet: whatever waits for it there should go elsewhere. `hash_root` is None when the fleet
    secret does not give the pod's root; then nothing is known of what it holds.
    """

    key: PodKey
    name: str
    address: str
    group: GroupKey
    numerics_id: str
    block_size: int
    capacity_blocks: int
    max_num_seqs: int
    load: LoadFields = NO_LOAD
    num_in_flight: int = 0
    num_pending: int = 0
    pending_tokens: int = 0
    pending_blocks: int = 0
    hash_root: bytes | None = None
    channel: grpc.aio.Channel | None = None
    silence: asyncio.Event | None = None
    has_room: bool = True
