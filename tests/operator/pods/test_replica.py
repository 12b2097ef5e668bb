"""The index is exact: whatever happens to pods and to their streams, when it goes quiet it holds what they hold."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from headstart.contract import codec
from headstart.contract.events import Digest
from headstart.contract.prefix import wire_hash
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.pods.replica import OutOfStepError, PodReplica, Resync
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_pod import Follower, ScriptedPod, block_hash, identity

ACTIONS = (
    *("store",) * 6,
    *("evict",) * 3,
    *("disturb",) * 6,
    *("deliver",) * 3,
    *("reconnect", "leave", "reset", "restart"),
)


def act(follower: Follower, action: str, choose: random.Random) -> None:
    pod = follower.pod
    if action == "store":
        pod.store(*(choose.randrange(1, 90) for _ in range(choose.randrange(1, 9))))
        pod.seal()
    elif action == "evict":
        pod.evict(choose)
        if choose.random() < 0.5:
            pod.seal()
    elif action == "reset":
        pod.reset()
        pod.seal()
    elif action == "restart":
        pod.restart()
        follower.connect()
    elif action == "reconnect":
        follower.connect()
    elif action == "leave":
        follower.replica.drop()
        follower.connect()
    elif action == "disturb":
        follower.send(choose.randrange(1, 6))
        follower.disturb(choose)
    else:
        follower.deliver()


@settings(max_examples=60, deadline=None)
@given(
    num_pods=st.sampled_from([1, 2, 3, 20]), num_actions=st.integers(10, 200), choose=st.randoms(use_true_random=False)
)
def test_at_rest_the_index_is_the_union_of_the_pods_whatever_was_lost_doubled_or_reordered(
    num_pods: int, num_actions: int, choose: random.Random
) -> None:
    index = PrefixIndex()
    followers = [Follower(ScriptedPod(), index, f"pod-{number}") for number in range(num_pods)]
    for _ in range(num_actions):
        act(choose.choice(followers), choose.choice(ACTIONS), choose)
        for follower in followers:
            assert index.digest(follower.replica.key).num_hashes <= follower.pod.capacity + 8
    holders = defaultdict(set)
    for follower in followers:
        follower.pod.seal()
        follower.settle()
        mirror = follower.pod.mirror
        key = PodKey(follower.replica.key.uid, mirror.epoch)
        assert follower.replica.key == key
        assert index.held(key) == set(mirror.held)
        assert index.digest(key) == mirror.digest
        for block in mirror.held:
            holders[block].add(key)
    assert {block: set(keys) for block, keys in index.dump()} == holders


def synced(pod: ScriptedPod) -> tuple[PodReplica, PrefixIndex]:
    index = PrefixIndex()
    follower = Follower(pod, index, "pod")
    follower.settle()
    assert follower.num_resyncs == 0
    return follower.replica, index


def delta(prev_seq: int, seq: int, *stored: int) -> cache_pb.CacheUpdate:
    update = cache_pb.CacheUpdate(delta=cache_pb.Delta(prev_seq=prev_seq, seq=seq))
    for block in stored:
        update.delta.events.add(stored=cache_pb.Stored(hash=block))
    return update


def refused(replica: PodReplica, update: cache_pb.CacheUpdate) -> str:
    with pytest.raises(OutOfStepError) as caught:
        replica.take(update)
    return caught.value.reason


def test_a_missing_delta_is_seen_in_the_next_message_and_a_doubled_one_is_skipped() -> None:
    replica, index = synced(ScriptedPod())
    replica.take(delta(0, 1, 5))
    replica.take(delta(0, 1, 5, 6))
    assert index.held(replica.key) == {5}
    assert refused(replica, delta(2, 3, 7)) == "gap"
    heartbeat = cache_pb.CacheUpdate(digest=cache_pb.Digest(seq=2, count=1, xor=5))
    assert refused(replica, heartbeat) == "gap"


def test_a_digest_of_another_set_is_refused_and_one_of_an_older_state_says_nothing() -> None:
    replica, _ = synced(ScriptedPod())
    replica.take(delta(0, 1, 5))
    replica.take(cache_pb.CacheUpdate(digest=cache_pb.Digest(seq=0)))
    replica.take(cache_pb.CacheUpdate(digest=cache_pb.Digest(seq=1, count=1, xor=5)))
    assert refused(replica, cache_pb.CacheUpdate(digest=cache_pb.Digest(seq=1, count=1, xor=4))) == "digest"


def test_more_hashes_than_the_pod_has_blocks_are_refused() -> None:
    replica, _ = synced(ScriptedPod(capacity=3))
    assert refused(replica, delta(0, 1, 5, 6, 7, 8)) == "capacity"


def test_nothing_is_taken_before_hello_and_no_delta_before_the_snapshot_is_whole() -> None:
    replica = PodReplica(PrefixIndex(), "pod")
    assert refused(replica, delta(0, 1, 5)) == "no_hello"
    replica.take(codec.encode_hello(identity("e1")))
    assert refused(replica, delta(0, 1, 5)) == "snapshot"
    replica.take(cache_pb.CacheUpdate(snapshot=cache_pb.SnapshotChunk(seq=4, hashes=[1], parents=[0])))
    assert not replica.is_synced
    assert refused(replica, delta(4, 5, 5)) == "snapshot"
    other = cache_pb.CacheUpdate(snapshot=cache_pb.SnapshotChunk(seq=5, hashes=[2], parents=[1], last=True))
    assert refused(replica, other) == "snapshot"


def test_another_process_at_the_same_place_takes_nothing_over() -> None:
    pod = ScriptedPod()
    pod.store(1, 2, 3)
    pod.seal()
    replica, index = synced(pod)
    before = replica.key
    replica.take(codec.encode_hello(identity("another")))
    assert (replica.key, replica.is_synced, replica.begin()) == (PodKey("pod", "another"), False, ("", 0))
    assert index.digest(before) == Digest(0, 0)
    assert index.match([wire_hash(block_hash(1))]) == {}


def test_an_older_load_does_not_replace_a_newer_one_but_still_tells_who_was_taken_in() -> None:
    replica, _ = synced(ScriptedPod())
    assert replica.take(cache_pb.CacheUpdate(load=cache_pb.Load(seq=7, running=3))) == ()
    assert replica.take(cache_pb.CacheUpdate(load=cache_pb.Load(seq=6, running=9, accepted=["a"]))) == ("a",)
    assert replica.load.running == 3


def test_snapshots_after_the_first_are_counted_by_why_they_came() -> None:
    resyncs: Counter[Resync] = Counter()
    replica = PodReplica(PrefixIndex(), "pod", resyncs=resyncs)
    hello = codec.encode_hello(identity("e1"))
    part, whole = (
        cache_pb.CacheUpdate(snapshot=cache_pb.SnapshotChunk(seq=4, hashes=[1], parents=[0], last=last))
        for last in (False, True)
    )

    def counted(*updates: cache_pb.CacheUpdate) -> dict[Resync, int]:
        """By the stream that begins with these."""
        before = resyncs.copy()
        replica.begin()
        for update in updates:
            replica.take(update)
        return dict(resyncs - before)

    assert counted(hello, whole) == {}
    assert counted(hello, delta(4, 5, 5)) == {}
    assert counted(hello, whole) == {"behind": 1}
    assert counted(hello, delta(4, 5, 5), whole) == {"behind": 1}
    assert counted(codec.encode_hello(identity("e2")), part) == {"epoch": 1}
    assert counted(codec.encode_hello(identity("e2")), whole) == {"stream": 1}
    replica.forget_position()
    assert counted(codec.encode_hello(identity("e2")), whole) == {}  # whoever asks for one counts it
