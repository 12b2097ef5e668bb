import asyncio
import contextlib
from functools import reduce
from operator import xor

import grpc
import grpc.aio
import pytest
from headstart.contract.codec import decode_delta
from headstart.contract.events import Cleared, Digest, EventBatch, Removed, Stored
from headstart.contract.prefix import block_hashes, encode_extras
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from service.server.conftest import BLOCK, ROOT, read, until


class Replica:
    """A client that keeps the pod's set by its updates alone, and checks each against the digests."""

    def __init__(self, call):
        self.call = call
        self.hello = None
        self.seq = 0
        self._clear()
        self._is_in_snapshot = False
        self.deltas = []
        self.num_snapshots = 0
        self.loads = []
        self.accepted = []

    async def next(self):
        update = await asyncio.wait_for(self.call.read(), 10)
        assert update is not grpc.aio.EOF
        kind = update.WhichOneof("update")
        if kind == "hello":
            self.hello = update.hello
        elif kind == "snapshot":
            self._take_snapshot(update.snapshot)
        elif kind == "delta":
            self._take_delta(update.delta)
        if update.HasField("load"):
            self.loads.append(update.load)
            self.accepted.extend(update.load.accepted)
        if update.HasField("digest"):
            assert update.digest.seq == self.seq
            assert (update.digest.count, update.digest.xor) == (len(self.held), self._xor)
        return update

    async def until(self, condition):
        while not condition():
            await self.next()

    async def ended(self):
        """The status. It comes only after all messages are read."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.until(lambda: False)
        return caught.value.code()

    def _take_snapshot(self, snapshot):
        if not self._is_in_snapshot:
            self._clear()
        for key, parent in zip(snapshot.hashes, snapshot.parents, strict=True):
            assert parent == 0 or parent in self.held
            self._store(key, parent)
        self._is_in_snapshot = not snapshot.last
        if snapshot.last:
            self.seq = snapshot.seq
        self.num_snapshots += snapshot.last

    def _take_delta(self, delta):
        assert (delta.prev_seq, delta.seq) == (self.seq, self.seq + 1)
        for event in decode_delta(delta):
            if isinstance(event, Stored):
                self._store(event.hash, event.parent)
            elif isinstance(event, Removed):
                del self.held[event.hash]
                self._xor ^= event.hash
            else:
                assert event == Cleared()
                self._clear()
        self.seq = delta.seq
        self.deltas.append(delta)

    def _store(self, key, parent):
        assert key not in self.held
        self.held[key] = parent
        self._xor ^= key

    def _clear(self):
        self.held = {}
        self._xor = 0


@contextlib.contextmanager
def watching(pod, *, epoch="", seq=0):
    call = pod.prefix_cache.Watch(cache_pb.WatchRequest(epoch=epoch, seq=seq))
    yield Replica(call)
    call.cancel()


async def test_a_watch_begins_with_hello_and_a_snapshot_and_follows_every_step(start_pod):
    pod = await start_pod()
    await pod.generate(text="before the watch")
    with watching(pod) as replica:
        await replica.until(lambda: replica.loads)
        assert replica.hello.epoch == pod.engine.mirror.epoch
        assert (replica.hello.pod_name, replica.hello.block_size) == ("pod-0", BLOCK)
        assert (replica.num_snapshots, replica.held) == (1, pod.engine.mirror.held)
        await asyncio.gather(*(pod.generate(text=f"{n} other prompts", max_tokens=30) for n in range(6)))
        await replica.until(lambda: replica.seq == pod.engine.mirror.seq)
        assert replica.held == pod.engine.mirror.held
        assert replica.num_snapshots == 1


async def test_evictions_and_a_reset_reach_the_watcher_in_order(start_pod):
    pod = await start_pod(num_blocks=24)
    with watching(pod) as replica:
        for number in range(6):
            await pod.generate(text=f"{number} fills the pool", max_tokens=20)
        await replica.until(lambda: replica.seq == pod.engine.mirror.seq)
        kinds = {event.WhichOneof("event") for delta in replica.deltas for event in delta.events}
        assert kinds == {"stored", "removed"}
        removed = (await pod.prefix_cache.Reset(cache_pb.ResetRequest())).removed
        assert removed == len(replica.held) > 0
        await replica.until(lambda: not replica.held)
        assert replica.seq == pod.engine.mirror.seq


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_watch_resumes_from_its_position_by_deltas_alone(start_pod, behind):
    pod = await start_pod()
    await pod.generate(max_tokens=60)
    mirror = pod.engine.mirror
    with watching(pod, epoch=mirror.epoch, seq=mirror.seq - behind) as replica:
        # As if it had followed until there.
        replica.seq = mirror.seq - behind
        updates = [await replica.call.read() for _ in range(1 + behind)]
        assert [update.WhichOneof("update") for update in updates] == ["hello"] + ["delta"] * behind
        assert [update.delta.seq for update in updates[1:]] == list(range(mirror.seq - behind + 1, mirror.seq + 1))


@pytest.mark.parametrize("position", ["another epoch", "older than the ring", "the future"])
async def test_a_position_that_means_nothing_here_gets_a_snapshot(start_pod, position):
    pod = await start_pod(event_buffer=4)
    await pod.generate(max_tokens=60)
    mirror = pod.engine.mirror
    epoch, seq = {
        "another epoch": ("0" * 32, mirror.seq),
        "older than the ring": (mirror.epoch, mirror.seq - 5),
        "the future": (mirror.epoch, mirror.seq + 1),
    }[position]
    with watching(pod, epoch=epoch, seq=seq) as replica:
        await replica.until(lambda: replica.loads)
        assert (replica.num_snapshots, replica.deltas, replica.held) == (1, [], mirror.held)


async def test_heartbeats_tell_the_age_of_a_step_that_does_not_end(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    call = pod.call(max_tokens=2)
    with watching(pod) as replica:
        await replica.until(lambda: [load.step_age_s for load in replica.loads if load.step_age_s > 0.1])
        first = len(replica.loads)
        await replica.until(lambda: len(replica.loads) >= first + 3)
        ages = [load.step_age_s for load in replica.loads[first:]]
        assert ages == sorted(ages)
        pod.runner.free()
        await read(call)
        await replica.until(lambda: replica.loads[-1].step_age_s == 0.0)


async def test_every_accepted_request_is_told_once_by_the_id_its_caller_knows(start_pod):
    pod = await start_pod()
    with watching(pod) as replica:
        await replica.until(lambda: replica.loads)
        await asyncio.gather(*(pod.generate(request_id=f"r{n}", n=2) for n in range(10)))
        await replica.until(lambda: len(replica.accepted) >= 10)
        await replica.next()
        assert sorted(replica.accepted) == sorted(f"r{n}" for n in range(10))


async def test_a_watcher_that_does_not_read_is_brought_up_by_a_snapshot_and_costs_nobody_anything(start_pod):
    pod = await start_pod(event_buffer=64)
    with watching(pod) as slow:
        await slow.until(lambda: slow.loads)
        for _ in range(20):
            flood(pod, num_batches=200)  # more than the transport buffers, and than the ring keeps
            await asyncio.sleep(0)
            assert (await pod.generate(text="a", max_tokens=1)).code is grpc.StatusCode.OK
        await slow.until(lambda: slow.seq == pod.engine.mirror.seq)
        assert slow.num_snapshots >= 2
        assert slow.held == pod.engine.mirror.held


def flood(pod, *, num_batches):
    """Batches as from so many steps. The engine knows nothing of them, so nothing may be cached afterwards."""
    mirror = pod.engine.mirror
    for _ in range(num_batches):
        keys = [mirror.seq * 1000 + number + 1 for number in range(40)]
        digest = Digest(mirror.digest.num_hashes + len(keys), reduce(xor, keys, mirror.digest.xor))
        mirror.apply(EventBatch(mirror.seq + 1, tuple(Stored(key, 0) for key in keys), digest))


async def test_a_snapshot_of_100_000_blocks_comes_in_small_messages_while_requests_are_served(start_pod):
    pod = await start_pod(event_buffer=4)
    flood(pod, num_batches=2500)
    sizes = []
    with watching(pod) as replica:
        while not replica.num_snapshots:
            sizes.append((await replica.next()).ByteSize())
            if len(sizes) == 5:
                assert (await pod.generate(text="a", max_tokens=1)).code is grpc.StatusCode.OK
        assert (len(replica.held), replica.held) == (100_000, pod.engine.mirror.held)
    assert len(sizes) > 20
    assert max(sizes) < 1024 * 1024


async def test_a_watch_ends_unavailable_when_the_server_stops_or_the_engine_dies(start_pod):
    pod = await start_pod()
    with watching(pod) as replica:
        await replica.until(lambda: replica.loads)
        pod.services.prefix_cache.leave()
        await replica.until(lambda: replica.loads[-1].draining)
        pod.services.prefix_cache.stop()
        assert await replica.ended() is grpc.StatusCode.UNAVAILABLE
    pod = await start_pod()
    with watching(pod) as replica:
        await replica.until(lambda: replica.loads)
        await pod.engine.close()
        assert await replica.ended() is grpc.StatusCode.UNAVAILABLE


def lookup(pod, **fields):
    return pod.prefix_cache.Lookup(cache_pb.LookupRequest(**fields))


async def test_a_lookup_tells_what_a_request_would_find_by_ids_and_by_hashes(start_pod):
    pod = await start_pod()
    ids = list(range(97, 97 + 10))
    assert (await lookup(pod, token_ids=ids)).matched_tokens == 0
    await pod.generate(token_ids=pb.TokenIds(ids=ids), max_tokens=1)
    for length in range(1, 11):
        matched = (await lookup(pod, token_ids=ids[:length])).matched_tokens
        assert matched == min(BLOCK * (length // BLOCK), length - 1)
    assert (await lookup(pod, token_ids=[*ids[:7], 97])).matched_tokens == BLOCK
    hashes = block_hashes(ROOT, ids, BLOCK)
    assert (await lookup(pod, hashes=hashes)).matched_tokens == 2 * BLOCK
    assert (await lookup(pod, hashes=[hashes[0], b"x" * 32])).matched_tokens == BLOCK


async def test_a_salt_separates_equal_prompts(start_pod):
    pod = await start_pod()
    ids = list(range(97, 97 + 9))
    await pod.generate(token_ids=pb.TokenIds(ids=ids), max_tokens=1, cache_salt="mine")
    assert (await lookup(pod, token_ids=ids)).matched_tokens == 0
    assert (await lookup(pod, token_ids=ids, cache_salt="yours")).matched_tokens == 0
    assert (await lookup(pod, token_ids=ids, cache_salt="mine")).matched_tokens == 2 * BLOCK
    hashes = block_hashes(ROOT, ids, BLOCK, encode_extras(cache_salt="mine"))
    assert (await lookup(pod, hashes=hashes)).matched_tokens == 2 * BLOCK


async def test_a_reset_is_refused_while_blocks_are_in_use_unless_forced_and_text_stays_the_same(start_pod):
    pod = await start_pod()
    alone = await pod.generate(max_tokens=400)
    pod.runner.hold()
    call = pod.call(max_tokens=400)
    await until(lambda: pod.engine.num_in_flight == 1)
    refused = pod.prefix_cache.Reset(cache_pb.ResetRequest())
    await step_until_done(pod, refused)
    assert await refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    forced = pod.prefix_cache.Reset(cache_pb.ResetRequest(force=True))
    await step_until_done(pod, forced)
    assert (await forced).removed > 0
    pod.runner.free()
    answer = await read(call)
    assert answer.token_ids() == alone.token_ids()
    assert answer.finished().timings.num_preemptions == 1
    assert (await pod.prefix_cache.Reset(cache_pb.ResetRequest())).removed > 0
    assert (await pod.generate()).finished().usage.cached_tokens == 0


async def step_until_done(pod, call):
    """One step at a time, so that the request that runs outlasts the call."""
    while not call.done():
        pod.runner.let(1)
        await asyncio.sleep(0.01)


async def test_the_state_adds_up_and_its_counters_tell_what_happened(start_pod):
    pod = await start_pod()
    for _ in range(2):
        await pod.generate(text="twelve bytes", max_tokens=4)
    await pod.quiescent()
    state = await pod.prefix_cache.GetState(cache_pb.GetStateRequest())
    assert (state.running, state.waiting, state.referenced_blocks) == (0, 0, 0)
    assert state.cached_blocks + state.free_blocks == 256
    assert state.cached_blocks == len(pod.engine.mirror.held)
    assert (state.queried_tokens, state.hit_tokens) == (24, 11)
    assert state.computed_tokens == 12 + 1 + 2 * 3
    assert state.steps >= pod.runner.num_steps
    assert (state.contained_faults, state.leaked_blocks, state.preemptions) == (0, 0, 0)
    assert (state.epoch, state.seq) == (pod.engine.mirror.epoch, pod.engine.mirror.seq)
    assert dict(state.features) == {"prefix_caching": "on"}


@pytest.mark.parametrize(
    ("method", "request_type"),
    [("Reset", cache_pb.ResetRequest), ("GetState", cache_pb.GetStateRequest), ("Lookup", cache_pb.LookupRequest)],
)
async def test_a_field_of_a_newer_contract_is_refused_and_nothing_is_done(start_pod, method, request_type):
    pod = await start_pod()
    await pod.generate()
    held = pod.engine.mirror.digest
    request = request_type.FromString(b"\xf8\x07\x01")  # field 127, varint 1
    if method == "Lookup":
        request.token_ids.append(1)
    with pytest.raises(grpc.aio.AioRpcError, match="a field that this build does not know") as caught:
        await getattr(pod.prefix_cache, method)(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pod.engine.mirror.digest == held != Digest(0, 0)


async def test_a_watch_with_an_unknown_field_is_refused(start_pod):
    pod = await start_pod()
    watch = pod.prefix_cache.Watch(cache_pb.WatchRequest.FromString(b"\xf8\x07\x01"))
    assert await watch.code() is grpc.StatusCode.INVALID_ARGUMENT
