"""The fleet over real streams: pods that come, go, drain, restart at the same address, fall silent or do not fit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from headstart.app.pod import Pod
from headstart.contract import codec
from headstart.contract.events import Digest
from headstart.contract.prefix import block_hashes, wire_hash
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.contract.proto import prefix_cache_pb2_grpc as cache_rpc
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.score import Query
from headstart_operator.pods.fixed import StaticPods
from headstart_operator.pods.fleet import Fleet, PodSource
from operator_rig import start_simulated_pod, until
from support.scripted_pod import ScriptedPod, identity

PROMPT = list(range(100, 420))


class Told:
    """A source that yields what the test tells it."""

    def __init__(self) -> None:
        self._sets: asyncio.Queue[frozenset[PodRef]] = asyncio.Queue()

    def tell(self, *refs: PodRef) -> None:
        self._sets.put_nowait(frozenset(refs))

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        while True:
            yield await self._sets.get()


@contextlib.asynccontextmanager
async def following(source: PodSource, **options: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet(source, **options)
    fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


@contextlib.asynccontextmanager
async def pods(count: int, **overrides: Any) -> AsyncIterator[list[Pod]]:
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for number in range(count):
            started.append(await start_simulated_pod(f"pod-{number}", **overrides))
            stack.push_async_callback(started[-1].stop)
        yield started


def address(pod: Pod) -> str:
    return f"127.0.0.1:{pod.grpc_port}"


async def generate(pod: Pod, request_id: str = "", num_tokens: int = 2) -> pb.Finished:
    request = pb.GenerateRequest(request_id=request_id, token_ids=pb.TokenIds(ids=PROMPT), max_tokens=num_tokens)
    async with grpc.aio.insecure_channel(address(pod)) as channel:
        messages = [message async for message in rpc.InferenceStub(channel).Generate(request, timeout=20)]
    return messages[-1].finished


def query(fleet: Fleet) -> Query:
    root = fleet.snapshot()[0].hash_root
    assert root is not None
    hashes = [wire_hash(digest) for digest in block_hashes(root, PROMPT, 16)]
    return Query(prompt_tokens=len(PROMPT), max_tokens=2, hashes=hashes)


async def test_the_index_is_each_pods_own_set_and_predicts_its_hits() -> None:
    # Tokens take time, so that a hit is worth more than the chance differences of two measured decode steps.
    slow = pods(2, runner__token_seconds=1e-4)
    async with slow as (warm, cold), following(StaticPods([address(warm), address(cold)])) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        await generate(warm)
        await until(lambda: fleet.index.num_blocks() == len(warm.engine.mirror.held) == 20)
        for view in fleet.snapshot():
            pod = warm if view.address == address(warm) else cold
            assert fleet.index.held(view.key) == set(pod.engine.mirror.held)
            assert fleet.index.digest(view.key) == pod.engine.mirror.digest
        best, other = fleet.rank(fleet.groups()[0], query(fleet))
        assert (best.view.address, best.predicted_cached_tokens, other.matched_blocks) == (address(warm), 319, 0)
        assert (await generate(warm)).usage.cached_tokens == 319


async def test_a_placement_attracts_its_siblings_until_it_ends() -> None:
    async with pods(2) as both, following(StaticPods([address(pod) for pod in both])) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        group, asked = fleet.groups()[0], query(fleet)
        first = fleet.rank(group, asked)[0]
        fleet.place("r~0", first, asked)
        sibling = fleet.rank(group, asked)[0]
        assert (sibling.view.key, sibling.matched_blocks) == (first.view.key, 20)
        assert (sibling.view.num_in_flight, sibling.view.pending_tokens) == (1, 320)
        runs_on = next(pod for pod in both if address(pod) == first.view.address)
        await generate(runs_on, "r~0")
        await until(lambda: all(not view.num_pending for view in fleet.snapshot()))
        fleet.settle("r~0", first.view, prompt_tokens=320, cached_tokens=0, output_tokens=2)
        assert [view.num_in_flight for view in fleet.snapshot()] == [0, 0]
        # Which pod ranks first now hangs on rates that were measured; what is cached where does not.
        await until(
            lambda: {each.view.key: each.matched_blocks for each in fleet.rank(group, asked)}[first.view.key] == 20
        )


async def test_a_fleet_that_starts_late_knows_what_was_cached_before() -> None:
    async with pods(2) as (warm, cold):
        await generate(warm)
        async with following(StaticPods([address(warm), address(cold)])) as fleet:
            await asyncio.wait_for(fleet.wait_ready(), 10)
            assert fleet.index.num_blocks() == 20


async def test_another_process_at_the_same_address_is_another_pod_and_begins_empty() -> None:
    first = await start_simulated_pod("pod-0")
    port = first.grpc_port
    async with following(StaticPods([address(first)])) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        await generate(first)
        await until(lambda: fleet.index.num_blocks() == 20)
        old = fleet.snapshot()[0].key
        await first.stop()
        await until(lambda: not fleet.snapshot())
        second = await start_simulated_pod("pod-0", server__grpc_port=port)
        try:
            await until(lambda: bool(fleet.snapshot()))
            (view,) = fleet.snapshot()
            assert (view.key.uid, view.key.epoch) == (old.uid, second.engine.mirror.epoch)
            assert (fleet.index.num_blocks(), fleet.index.digest(old)) == (0, Digest(0, 0))
        finally:
            await second.stop()


async def test_pods_that_are_not_ready_terminate_or_leave_take_no_requests() -> None:
    async with pods(1) as (pod,):
        source = Told()
        ref = PodRef(uid="u", name="n", address=address(pod))
        async with following(source) as fleet:
            source.tell(replace(ref, is_ready=False))
            await asyncio.wait_for(fleet.wait_ready(), 10)
            assert fleet.snapshot() == ()
            for refs, expected in [
                ((ref,), 1),
                ((replace(ref, is_terminating=True),), 0),
                ((ref,), 1),
                ((replace(ref, is_ready=False),), 0),
                ((ref,), 1),
                ((), 0),
            ]:
                source.tell(*refs)
                await until(lambda expected=expected: len(fleet.snapshot()) == expected)
            assert fleet.refs() == ()
            assert fleet.index.num_blocks() == 0


async def test_a_pod_that_drains_is_out_of_the_ranking_at_once() -> None:
    async with pods(1) as (pod,), following(StaticPods([address(pod)])) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        draining = asyncio.create_task(pod.server.drain(delay_s=20.0, timeout_s=1.0))
        await until(lambda: not fleet.snapshot())
        draining.cancel()


async def test_a_fleet_is_ready_when_no_pod_is_to_be_waited_for() -> None:
    source = Told()
    async with following(source) as fleet:
        await asyncio.sleep(0.05)
        assert not fleet.is_ready
        source.tell()
        await asyncio.wait_for(fleet.wait_ready(), 2)
        assert fleet.groups() == ()


async def test_readiness_waits_for_what_requests_need_of_the_pods_besides() -> None:
    async with pods(1) as (pod,):
        is_there = asyncio.Event()
        fleet = Fleet(StaticPods([address(pod)]))
        fleet.start(is_prepared=lambda _views: is_there.is_set())
        await until(lambda: bool(fleet.snapshot()))
        assert not fleet.is_ready
        is_there.set()
        fleet.check_ready()
        assert fleet.is_ready
        await fleet.close()


async def test_a_pod_of_another_secret_is_a_group_of_its_own_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async with pods(1) as (ours,), pods(1, cache__hash_seed="other") as (theirs,):
        with caplog.at_level(logging.WARNING, "headstart_operator"):
            async with following(StaticPods([address(ours), address(theirs)])) as fleet:
                await asyncio.wait_for(fleet.wait_ready(), 10)
                await until(lambda: len(fleet.groups()) == 2)
                roots = {view.address: view.hash_root for view in fleet.snapshot()}
        assert roots[address(ours)] is not None
        assert roots[address(theirs)] is None
        assert fleet.counters.misfits >= 1
        assert "hash root" in caplog.text


class Stage(cache_rpc.PrefixCacheServicer):
    """A pod's stream that says what the scripted pod does, and is silent or wrong when it is told to be."""

    def __init__(self, pod: ScriptedPod, uid: str = "") -> None:
        self.pod = pod
        self.uid = uid
        self.is_silent = False
        self.spoil: Callable[[cache_pb.CacheUpdate], None] = lambda _update: None
        self.positions: list[tuple[str, int]] = []

    async def Watch(self, request: cache_pb.WatchRequest, context: Any) -> None:
        self.positions.append((request.epoch, request.seq))
        for update in self._updates(request):
            while self.is_silent:
                await asyncio.sleep(0.01)
            self.spoil(update)
            await context.write(update)
            await asyncio.sleep(0.01)

    def _updates(self, request: cache_pb.WatchRequest) -> Iterator[cache_pb.CacheUpdate]:
        updates = self.pod.watch(request.epoch, request.seq)
        next(updates)
        yield codec.encode_hello(identity(self.pod.mirror.epoch, uid=self.uid))
        yield from updates


@contextlib.asynccontextmanager
async def staged(stage: Stage) -> AsyncIterator[str]:
    server = grpc.aio.server()
    cache_rpc.add_PrefixCacheServicer_to_server(stage, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_silent_pod_takes_no_requests_and_resumes_where_it_was() -> None:
    pod = ScriptedPod()
    pod.store(1, 2, 3)
    pod.seal()
    stage = Stage(pod)
    async with staged(stage) as where, following(StaticPods([where]), silence_s=0.3) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        (view,) = fleet.snapshot()
        assert view.silence is not None
        assert not view.silence.is_set()
        stage.is_silent = True
        await asyncio.wait_for(view.silence.wait(), 10)
        assert fleet.snapshot() == ()
        pod.store(4)
        pod.seal()
        stage.is_silent = False
        await until(lambda: bool(fleet.snapshot()))
        (back,) = fleet.snapshot()
        assert fleet.index.held(back.key) == set(pod.mirror.held)
        assert back.silence is not None
        assert not back.silence.is_set()
        assert (pod.mirror.epoch, 1) in stage.positions


async def test_a_digest_that_does_not_match_is_counted_and_healed_while_the_pod_goes_on_serving() -> None:
    pod = ScriptedPod()
    pod.store(1, 2, 3)
    pod.seal()
    stage = Stage(pod)

    def lose_an_event(update: cache_pb.CacheUpdate) -> None:
        if update.HasField("delta"):
            del update.delta.events[0]
            stage.spoil = lambda _update: None

    async with staged(stage) as where, following(StaticPods([where])) as fleet:
        await asyncio.wait_for(fleet.wait_ready(), 10)
        stage.spoil = lose_an_event
        pod.store(4, 5)
        pod.seal()
        await until(lambda: fleet.counters.resyncs["digest"] == 1)
        assert len(fleet.snapshot()) == 1
        await until(lambda: fleet.index.num_blocks() == 5)
        assert fleet.index.digest(fleet.snapshot()[0].key) == pod.mirror.digest


async def test_an_address_that_went_to_another_pod_is_not_taken_for_the_first() -> None:
    source = Told()
    async with staged(Stage(ScriptedPod(), uid="new")) as where, following(source) as fleet:
        source.tell(PodRef(uid="old", name="n", address=where))
        await until(lambda: fleet.counters.resyncs["other_pod"] >= 1)
        assert fleet.snapshot() == ()
        source.tell(PodRef(uid="new", name="n", address=where))
        await until(lambda: [view.key.uid for view in fleet.snapshot()] == ["new"])
