"""The router's decision over many pods that hold much, and what its index takes in memory.

The pods are streams that were told and connections that nobody opens; everything else is the router's own: fleet,
index, hashes and scores. Knows nothing of networks. Whoever calls owns what is built here.
"""

from __future__ import annotations

import gc
import hashlib
import random
import time
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headstart.contract.prefix import block_hashes, hash_root, wire_hashes
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart_operator.decision.catalog import Entry
from headstart_operator.decision.identity import PodKey, PodRef
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.reading import tokenize, understand
from headstart_operator.pods.connection import insecure_channel
from headstart_operator.pods.fixed import StaticPods
from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.pod import FollowedPod
from headstart_operator.pods.replica import PodReplica
from headstart_operator.pods.subscriber import Subscriber

BLOCK_SIZE = 16
PROMPT_BLOCKS = 512
NUM_HOT = 8
VOCAB_SIZE = 50_000
ROOT_FIELDS = {"model": "bench"}
ROOT = hash_root(ROOT_FIELDS)


class Timed(NamedTuple):
    """Seconds of one decision: processor time of its parts, and the wall clock of hash and rank.

    `rank_s` is the match and the scores; `place_s` is what noting the choice takes.
    """

    hash_s: float
    rank_s: float
    place_s: float
    wall_s: float


class Corpus(NamedTuple):
    """Prompts by what pods hold of them: all of them some of it, one of them all of it, nobody anything."""

    hot: list[array[int]]
    own: list[array[int]]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def draw_prompt(choose: random.Random) -> array[int]:
    """Token ids of 512 full blocks. An array, for lists of millions of ids would keep the garbage collector busy."""
    return array("I", (choose.randrange(VOCAB_SIZE) for _ in range(PROMPT_BLOCKS * BLOCK_SIZE)))


def hashes_of(token_ids: Sequence[int]) -> list[int]:
    return wire_hashes(block_hashes(ROOT, token_ids, BLOCK_SIZE))


def hello(capacity: int) -> cache_pb.CacheUpdate:
    digest = hashlib.sha256(ROOT).hexdigest()
    return cache_pb.CacheUpdate(
        hello=cache_pb.Hello(
            epoch="e",
            model="bench",
            hash_root_digest=digest,
            hash_root_fields=ROOT_FIELDS,
            block_size=BLOCK_SIZE,
            capacity_blocks=capacity,
            max_num_seqs=256,
        )
    )


def snapshot(held: Sequence[int]) -> cache_pb.CacheUpdate:
    """What a pod says that holds these, and is busy."""
    chunk = cache_pb.SnapshotChunk(seq=1, hashes=held, parents=held, last=True)
    load = cache_pb.Load(seq=1, running=8, prefill_tokens_per_s=8000.0, decode_step_s=0.01, free_blocks=100)
    return cache_pb.CacheUpdate(snapshot=chunk, load=load)


def fill(fleet: Fleet, *, num_pods: int, num_blocks: int, progress: Callable[[float], None]) -> Corpus:
    """Follow pods that hold `num_blocks` each. Of the hot prompts each pod holds another share, so that they leave the
    match one by one; the rest are whole prompts of its own.
    """
    choose = random.Random(1)
    corpus = Corpus([draw_prompt(choose) for _ in range(NUM_HOT)], [])
    hot = [hashes_of(prompt) for prompt in corpus.hot]
    for number in range(num_pods):
        held = [block for chain in hot for block in chain[: PROMPT_BLOCKS * (number + 1) // num_pods]]
        while len(held) < num_blocks:
            corpus.own.append(draw_prompt(choose))
            held += hashes_of(corpus.own[-1])[: num_blocks - len(held)]
        follow(fleet, f"pod-{number}", held)
        progress((number + 1) / num_pods)
    return corpus


def follow(fleet: Fleet, name: str, held: Sequence[int]) -> None:
    """As the fleet takes a pod on whose stream has told all this."""
    ref = PodRef(uid=name, name=name, address="127.0.0.1:1")
    channel = insecure_channel(ref.address)
    subscriber = Subscriber(ref, channel, fleet.index, resyncs=fleet.counters.resyncs)
    subscriber.replica.begin()
    subscriber.replica.take(hello(len(held)))
    subscriber.replica.take(snapshot(held))
    subscriber.is_live = True
    pod = fleet._pods[name] = FollowedPod(ref, channel, subscriber, fleet._routing.placements)
    fleet._learn_root(pod)
    pod.touch()
    fleet._touch()


class Decisions:
    """Requests that are decided one after the other, each when every pod has just told a new load."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        limits = Limits(
            model="bench", max_len=1 << 17, vocab_size=VOCAB_SIZE, max_token_bytes=1, max_prompt_bytes=1 << 20
        )
        self._entry = Entry(
            model=pb.Model(name="bench"), limits=limits, prompts=PromptReader(None, None, num_threads=1), document=b""
        )
        self._num_decided = 0

    async def decide(self, prompt: Sequence[int]) -> Timed:
        """Hash, match, score and place; then it is over."""
        self._num_decided += 1
        name = f"r{self._num_decided}"
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), max_tokens=256)
        tokenized = await tokenize(request, self._entry, request_id=name, seed=1)
        view = self._fleet.snapshot()[0]
        for pod in self._fleet._pods.values():
            pod.touch()
        self._fleet._touch()
        started_wall_s, started_s = time.perf_counter(), time.thread_time()
        reading = await understand(tokenized, self._entry, view)
        hashed_s = time.thread_time()
        ranked = self._fleet.rank(reading.group, reading.query, has_room=True)
        ranked_s, ranked_wall_s = time.thread_time(), time.perf_counter()
        self._fleet.place(name, ranked[0], reading.query)
        placed_s = time.thread_time()
        self._fleet.settle(name, ranked[0].view)
        return Timed(hashed_s - started_s, ranked_s - hashed_s, placed_s - ranked_s, ranked_wall_s - started_wall_s)


def index_bytes(*, num_pods: int, num_blocks: int, num_shared: int) -> float:
    """Bytes per (block, pod) of an index that took snapshots, of which `num_shared` blocks are on every pod."""
    choose = random.Random(2)
    shared = [choose.getrandbits(64) for _ in range(num_shared)]
    gc.collect()
    tracemalloc.start()
    index, replicas = PrefixIndex(), []
    before = tracemalloc.get_traced_memory()[0]
    for number in range(num_pods):
        replica = PodReplica(index, f"pod-{number}")
        replica.begin()
        replica.take(hello(num_blocks))
        replica.take(snapshot([*shared, *(choose.getrandbits(64) for _ in range(num_blocks - num_shared))]))
        replicas.append(replica)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert index.digest(PodKey("pod-0", "e")).num_hashes == num_blocks
    return used / (num_pods * num_blocks)


def make_fleet() -> Fleet:
    """One that follows nobody by itself."""
    return Fleet(StaticPods(["127.0.0.1:1"]))
