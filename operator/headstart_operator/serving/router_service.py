"""The `Router` service: what the operator knows and how it would decide, for people and for tests. It changes nothing.

Holds no state.
"""

# ruff: noqa: ARG002, N802  (gRPC fixes the names and the arguments of handlers)

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc.aio
from headstart.contract.proto import inference_pb2, router_pb2, router_pb2_grpc
from headstart.edge.validation import refuse_unknown_fields
from headstart.errors import NotFoundError

from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.score import Ranked
from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.pod import FollowedPod
from headstart_operator.serving.balancer import Balancer, route_of

_ENTRIES_PER_MESSAGE = 4096
_DIGEST_CHARS = 12  # of the parts of a group's name: enough to tell groups apart by eye

Context = grpc.aio.ServicerContext[Any, Any]


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Questions about the fleet."""

    def __init__(self, fleet: Fleet, balancer: Balancer) -> None:
        self._fleet = fleet
        self._balancer = balancer

    async def Explain(self, request: inference_pb2.GenerateRequest, context: Context) -> router_pb2.Explanation:
        job = await self._balancer.read(request)
        ranked = self._balancer.explain(job)
        query = job.readings[0].query
        num_prompt_tokens = len(job.readings[0].request.token_ids.ids)
        return router_pb2.Explanation(
            route=route_of(ranked[0], len(ranked), num_prompt_tokens=num_prompt_tokens) if ranked else None,
            ranked=[self._candidate(each, num_prompt_tokens) for each in ranked],
            prompt_tokens=query.prompt_tokens,
            prompt_blocks=len(query.hashes),
        )

    async def DumpIndex(self, request: router_pb2.DumpIndexRequest, context: Context) -> None:
        """The index as of one moment: it is copied before the first message leaves."""
        refuse_unknown_fields(request)
        if request.uid and request.uid not in {ref.uid for ref, _ in self._fleet.refs()}:
            raise NotFoundError("uid: no such pod is known; GetPods names them")
        entries = list(self._fleet.index.dump())
        keys = sorted({key for _, holders in entries for key in holders if request.uid in ("", key.uid)})
        await context.write(router_pb2.IndexChunk(uids=[key.uid for key in keys]))
        for chunk in _chunks(entries, {key: number for number, key in enumerate(keys)}):
            await context.write(chunk)
            await asyncio.sleep(0)

    async def GetPods(self, request: router_pb2.GetPodsRequest, context: Context) -> router_pb2.Pods:
        refuse_unknown_fields(request)
        pods = sorted(self._fleet.pods(), key=lambda pod: (pod.ref.name, pod.ref.address))
        return router_pb2.Pods(pods=[self._pod(pod) for pod in pods])

    def _pod(self, pod: FollowedPod) -> router_pb2.Pod:
        ref, view = pod.ref, pod.view
        if view is None:
            return router_pb2.Pod(name=ref.name, address=ref.address, uid=ref.uid, state=pod.state)
        digest = self._fleet.index.digest(view.key)
        return router_pb2.Pod(
            name=view.name,
            address=ref.address,
            uid=ref.uid,
            epoch=view.key.epoch,
            model=view.group.model,
            numerics_id=view.numerics_id,
            is_serving=True,
            state=pod.state,
            running=view.load.running,
            waiting=view.load.waiting,
            in_flight=view.num_in_flight,
            index_blocks=digest.num_hashes,
            index_xor=digest.xor,
            seq=view.load.seq,
            capacity_blocks=view.capacity_blocks,
            prefill_tokens_per_s=view.load.prefill_tokens_per_s,
            group="/".join(part[:_DIGEST_CHARS] for part in view.group if part),
        )

    def _candidate(self, ranked: Ranked, num_prompt_tokens: int) -> router_pb2.Candidate:
        return router_pb2.Candidate(
            pod=ranked.view.name,
            cost_s=ranked.cost_s,
            queue_s=ranked.queue_s,
            work_s=ranked.work_s,
            matched_blocks=ranked.matched_blocks,
            predicted_cached_tokens=min(ranked.predicted_cached_tokens, num_prompt_tokens),
            has_room=ranked.view.has_room,
        )


def _chunks(
    entries: Sequence[tuple[int, tuple[PodKey, ...]]], numbers: Mapping[PodKey, int]
) -> Iterator[router_pb2.IndexChunk]:
    """Hashes with the numbers of their holders, as far as these have one."""
    for start in range(0, len(entries), _ENTRIES_PER_MESSAGE):
        chunk = router_pb2.IndexChunk()
        for block, holders in entries[start : start + _ENTRIES_PER_MESSAGE]:
            pods = [numbers[key] for key in holders if key in numbers]
            if pods:
                chunk.entries.add(hash=block, pods=pods)
        yield chunk
