"""What a followed pod is to requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import get_args

from headstart.contract import codec
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.placements import Placements
from headstart_operator.pods.connection import insecure_channel
from headstart_operator.pods.pod import FollowedPod, PodState
from headstart_operator.pods.subscriber import Subscriber
from support.scripted_pod import identity

_REF = PodRef(uid="u", name="a", address="127.0.0.1:1")
_HELLO = codec.encode_hello(identity("e"))
(_SNAPSHOT,) = codec.encode_snapshot(0, [])


@asynccontextmanager
async def _pod(ref: PodRef = _REF) -> AsyncIterator[FollowedPod]:
    """A pod whose stream has not begun."""
    channel = insecure_channel(ref.address)
    index = PrefixIndex()
    subscriber = Subscriber(ref, channel, index, resyncs=Counter())
    yield FollowedPod(ref, channel, subscriber, Placements(index, clock=lambda: 0.0))
    await channel.close()


def _take(pod: FollowedPod, *updates: cache_pb.CacheUpdate) -> None:
    for update in updates:
        pod.subscriber.replica.take(update)


async def test_a_pods_state_is_one_word_all_its_life() -> None:
    seen: list[PodState] = []
    async with _pod() as pod:
        seen.append(pod.state)
        pod.subscriber.replica.begin()
        _take(pod, _HELLO)
        seen.append(pod.state)
        _take(pod, _SNAPSHOT)
        pod.subscriber.is_live = True
        seen.append(pod.state)
        pod.ref = replace(_REF, model="another")
        seen.append(pod.state)
        pod.ref = _REF
        _take(pod, cache_pb.CacheUpdate(load=cache_pb.Load(seq=1, draining=True)))
        seen.append(pod.state)
        pod.subscriber.is_live = False
        seen.append(pod.state)
    assert seen == ["lost", "starting", "candidate", "other", "draining", "lost"]
    assert set(seen) == set(get_args(PodState))


async def test_a_pod_that_is_not_meant_to_serve_is_never_called_lost() -> None:
    async with _pod(replace(_REF, is_ready=False)) as pod:
        assert pod.state == "starting"
    async with _pod(replace(_REF, is_terminating=True)) as pod:
        assert pod.state == "draining"
