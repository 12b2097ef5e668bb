"""The `PrefixCache` service of a pod: what it holds, as it changes.

A watch has no queue. It has a position, and what it has not sent yet is read from the engine's mirror when its client
takes the next message; one that falls behind the mirror's ring gets a snapshot again. So a slow client costs nobody
anything, and the order needs no care. Knows nothing of the live pool. Owner of its state: the server's event loop.
"""

# ruff: noqa: ARG002, N802  (gRPC fixes the names and the arguments of handlers)

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc.aio

from headstart.contract import codec
from headstart.contract.identity import PodIdentity
from headstart.contract.prefix import block_hashes, encode_extras, hit_length, wire_hash
from headstart.contract.proto import prefix_cache_pb2, prefix_cache_pb2_grpc
from headstart.edge.limits import Limits
from headstart.edge.specs import is_first_choice
from headstart.edge.validation import check_lookup, refuse_unknown_fields
from headstart.engine.handle import EngineHandle
from headstart.engine.subscription import Subscription
from headstart.errors import UnavailableError

HEARTBEAT_S = 0.5
SNAPSHOT_CHUNK_BLOCKS = 512
"""8 KiB on the wire, and about half a millisecond of this thread."""

SNAPSHOT_PAUSE_S = 0.001
"""After each chunk this thread lets go of the interpreter, so that a step in progress waits for one chunk at most."""

Context = grpc.aio.ServicerContext[Any, Any]


class PrefixCacheServicer(prefix_cache_pb2_grpc.PrefixCacheServicer):
    """`hash_root` is the parent of every first block's hash: 32 bytes that never leave the pod."""

    def __init__(
        self,
        engine: EngineHandle,
        *,
        identity: PodIdentity,
        limits: Limits,
        hash_root: bytes,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._limits = limits
        self._hash_root = hash_root
        self._heartbeat_s = heartbeat_s
        self._watches: set[Subscription] = set()
        self._is_leaving = False
        self._is_stopping = False

    def leave(self) -> None:
        """Tell the watchers at once that this pod drains, so that nobody routes to it."""
        self._is_leaving = True
        self._wake_watches()

    def stop(self) -> None:
        """End the watches: they would outlast any drain."""
        self._is_stopping = True
        self._wake_watches()

    async def Watch(self, request: prefix_cache_pb2.WatchRequest, context: Context) -> None:
        refuse_unknown_fields(request)
        subscription = self._engine.subscribe()
        self._watches.add(subscription)
        try:
            await context.write(codec.encode_hello(self._identity))
            epoch, seq = request.epoch, request.seq
            while self._engine.is_alive and not self._is_stopping:
                seq = await self._send_news(context, subscription, epoch=epoch, seq=seq)
                epoch = self._identity.epoch
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(subscription.changed(), self._heartbeat_s)
            raise UnavailableError("this pod has stopped; its cache is gone")
        finally:
            self._watches.discard(subscription)
            subscription.close()

    async def Lookup(
        self, request: prefix_cache_pb2.LookupRequest, context: Context
    ) -> prefix_cache_pb2.LookupResponse:
        check_lookup(request, self._limits)
        if request.hashes:
            # How long the prompt is stays unknown, so a block that it ends with exactly counts in full.
            matched_tokens = self._num_held(request.hashes) * self._identity.block_size
        else:
            token_ids = list(request.token_ids)
            hashes = await asyncio.to_thread(self._hashes, token_ids, request.cache_salt)
            matched_tokens = hit_length(self._num_held(hashes), len(token_ids), self._identity.block_size)
        return prefix_cache_pb2.LookupResponse(matched_tokens=matched_tokens)

    async def Reset(self, request: prefix_cache_pb2.ResetRequest, context: Context) -> prefix_cache_pb2.ResetResponse:
        refuse_unknown_fields(request)
        return prefix_cache_pb2.ResetResponse(removed=await self._engine.reset(force=request.force))

    async def GetState(self, request: prefix_cache_pb2.GetStateRequest, context: Context) -> prefix_cache_pb2.State:
        refuse_unknown_fields(request)
        stats = self._engine.stats
        return prefix_cache_pb2.State(
            running=stats.running,
            waiting=stats.waiting,
            referenced_blocks=stats.referenced_blocks,
            cached_blocks=stats.cached_blocks,
            free_blocks=stats.free_blocks,
            preemptions=stats.num_preemptions,
            computed_tokens=stats.computed_tokens,
            steps=stats.steps,
            last_step_age_s=stats.last_step_age_s,
            features=dict(self._identity.features),
            queried_tokens=stats.queried_tokens,
            hit_tokens=stats.hit_tokens,
            contained_faults=stats.contained_faults,
            leaked_blocks=stats.leaked_blocks,
            epoch=self._engine.mirror.epoch,
            seq=self._engine.mirror.seq,
            requeried_tokens=stats.requeried_tokens,
            rehit_tokens=stats.rehit_tokens,
        )

    async def _send_news(self, context: Context, subscription: Subscription, *, epoch: str, seq: int) -> int:
        """Bring a client at (epoch, seq) up to date, then tell the load. Returns where it is now."""
        mirror = self._engine.mirror
        batches = mirror.since(epoch, seq)
        if batches is None:
            seq = await self._send_snapshot(context)
        for batch in batches or ():
            update = codec.encode_delta(batch)
            seq = batch.seq
            if seq == mirror.seq:
                update.load.CopyFrom(self._load(subscription))
            await context.write(update)
        if not batches or seq != mirror.seq:
            update = prefix_cache_pb2.CacheUpdate(load=self._load(subscription))
            if seq == mirror.seq:
                update.digest.CopyFrom(codec.encode_digest(seq, mirror.digest))
            await context.write(update)
        return seq

    async def _send_snapshot(self, context: Context) -> int:
        seq, columns = self._engine.mirror.snapshot(SNAPSHOT_CHUNK_BLOCKS)
        for update in codec.encode_snapshot(seq, columns):
            await context.write(update)
            await asyncio.sleep(SNAPSHOT_PAUSE_S)
        return seq

    def _load(self, subscription: Subscription) -> prefix_cache_pb2.Load:
        accepted = [request_id for request_id in subscription.take_accepted() if is_first_choice(request_id)]
        load = codec.LoadFields(**self._engine.load._asdict())
        return codec.encode_load(load._replace(accepted=accepted, draining=load.draining or self._is_leaving))

    def _wake_watches(self) -> None:
        for subscription in self._watches:
            subscription.wake(())

    def _hashes(self, token_ids: Sequence[int], cache_salt: str) -> list[bytes]:
        extras = encode_extras(cache_salt=cache_salt)
        return block_hashes(self._hash_root, token_ids, self._identity.block_size, extras)

    def _num_held(self, hashes: Sequence[bytes]) -> int:
        """How many of the leading hashes are cached."""
        held = self._engine.mirror.held
        for count, digest in enumerate(hashes):
            if wire_hash(digest) not in held:
                return count
        return len(hashes)
