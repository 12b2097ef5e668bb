"""Pods in virtual time behind the router's own decision, and a clock that jumps from event to event.

Equal inputs give equal runs. Nothing here waits, listens or computes a model. Owner of its state: the caller.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.routing import Routing
from headstart_operator.decision.score import Policy, Query
from headstart_operator.decision.view import NO_LOAD, PodView

from headstart.cli.bench.traffic import Arrival
from headstart.cli.bench.virtual_pod import ROOT, Shape, VirtualPod
from headstart.contract.codec import LoadFields
from headstart.contract.events import Cleared, EventBatch, Stored
from headstart.contract.prefix import block_hashes, wire_hash
from headstart.contract.request import GenerateSpec

HOP_S = 0.0005
GROUP = GroupKey("m", "t", "r")


@dataclass(slots=True)
class Outcome:
    """Of one request: where it ran, what it found, how long until its first token. `is_failed` when it had no end."""

    group: int
    prompt_tokens: int
    pod: str = ""
    predicted_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0
    is_failed: bool = True


@dataclass(slots=True)
class Report:
    """All outcomes in order of arrival, and how many tokens the pods have computed in all."""

    outcomes: list[Outcome]
    computed_tokens: int

    @property
    def hit_ratio(self) -> float:
        return sum(each.cached_tokens for each in self.outcomes) / sum(each.prompt_tokens for each in self.outcomes)

    @property
    def num_failed(self) -> int:
        return sum(each.is_failed for each in self.outcomes)

    def ttft_s(self, quantile: float) -> float:
        times = sorted(each.ttft_s for each in self.outcomes if not each.is_failed)
        return times[min(len(times) - 1, int(quantile * len(times)))] if times else 0.0


class VirtualFleet:
    """`policy` decides, or `partition` when it is given: group -> pod, whatever is cached or busy."""

    def __init__(
        self,
        num_pods: int,
        shape: Shape,
        *,
        policy: Policy = Policy.PREFIX,
        partition: Callable[[int], int] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.shape = shape
        self.pods = [VirtualPod(f"pod-{number}", shape, lambda: self.now_s) for number in range(num_pods)]
        self.policy = policy
        self._partition = partition
        self.loads: dict[PodKey, LoadFields] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._placed: dict[str, tuple[int, Arrival, Query, PodView]] = {}
        self._outcomes: list[Outcome] = []
        self._attempts: dict[int, int] = {}
        self.restart_router()
        for pod in self.pods:
            self._warm_up(pod)

    def restart_router(self) -> None:
        """A new router knows what the pods tell it in their snapshots; clients send again what the old one was at."""
        self.routing = Routing(policy=self.policy, clock=lambda: self.now_s)
        placed, self._placed = self._placed, {}
        for pod in self.pods:
            if pod.is_up:
                self._snapshot(pod)
                for request_id in placed:
                    pod.scheduler.abort(request_id)
        for number, arrival, _, _ in placed.values():
            self._route(number, arrival)

    def at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._numbers), act))

    def run(self, arrivals: Iterable[Arrival]) -> Report:
        """Play all of it to its end."""
        for number, arrival in enumerate(arrivals):
            self._outcomes.append(Outcome(arrival.group, len(arrival.prompt)))
            self.at(arrival.at_s, lambda number=number, arrival=arrival: self._route(number, arrival))  # type: ignore[misc]
        while self._agenda:
            self.now_s, _, act = heapq.heappop(self._agenda)
            act()
        return Report(self._outcomes, sum(pod.scheduler.stats.computed_tokens for pod in self.pods))

    # ---- faults

    def kill(self, pod: VirtualPod) -> None:
        """All it ran is sent elsewhere, as an operator does whose streams break."""
        pod.is_up = False
        pod.version += 1
        self.routing.index.drop(pod.key)
        self.loads.pop(pod.key, None)
        for name, (number, arrival, _, view) in list(self._placed.items()):
            if view.key == pod.key:
                del self._placed[name]
                self.routing.settle(name, view)
                self._route(number, arrival)

    def revive(self, pod: VirtualPod) -> None:
        """Another process at the same place."""
        pod.is_draining = False
        pod.restart()
        self._warm_up(pod)
        self._snapshot(pod)

    def drain(self, pod: VirtualPod) -> None:
        """It says so in its next heartbeat, ends what it has, and takes nothing new."""
        pod.is_draining = True
        self.loads[pod.key] = self.loads[pod.key]._replace(draining=True)

    def replace(self, pod: VirtualPod) -> None:
        """Its drain is over: what is left there ends, and another process takes its place."""
        self.kill(pod)
        self.revive(pod)

    # ---- the way of a request

    def views(self) -> list[PodView]:
        return [
            PodView(
                key=pod.key,
                name=pod.name,
                address=pod.name,
                group=GROUP,
                numerics_id="",
                block_size=self.shape.block_size,
                capacity_blocks=self.shape.num_blocks,
                max_num_seqs=self.shape.limits.max_num_seqs,
                load=self.loads[pod.key],
                num_in_flight=placed.num_in_flight,
                num_pending=placed.num_pending,
                pending_tokens=placed.tokens,
                pending_blocks=placed.blocks,
                hash_root=ROOT,
            )
            for pod in self.pods
            if pod.key in self.loads and not self.loads[pod.key].draining
            for placed in (self.routing.placements.of(pod.key),)
        ]

    def _route(self, number: int, arrival: Arrival) -> None:
        views = self.views()
        if not views:
            return
        digests = block_hashes(ROOT, arrival.prompt, self.shape.block_size)
        query = Query(
            prompt_tokens=len(arrival.prompt),
            max_tokens=arrival.max_tokens,
            hashes=[wire_hash(each) for each in digests],
        )
        self.routing.placements.expire()
        ranked = self.routing.rank(query, views)
        best = ranked[0]
        if self._partition is not None:
            name = f"pod-{self._partition(arrival.group)}"
            best = next(each for each in ranked if each.view.name == name)
        attempt = self._attempts[number] = self._attempts.get(number, -1) + 1
        request_id = f"{number}~{attempt}"
        self.routing.place(request_id, best, query)
        self._placed[request_id] = (number, arrival, query, best.view)
        outcome = self._outcomes[number]
        outcome.pod, outcome.predicted_tokens = best.view.name, best.predicted_cached_tokens
        pod = next(pod for pod in self.pods if pod.key == best.view.key)
        spec = GenerateSpec(
            request_id=request_id, prompt_token_ids=arrival.prompt, max_tokens=arrival.max_tokens, ignore_eos=True
        )
        self._later(pod, HOP_S, lambda: self._submit(pod, spec))

    def _submit(self, pod: VirtualPod, spec: GenerateSpec) -> None:
        pod.scheduler.add(spec)
        pod.accepted.append(spec.request_id)
        if pod.plan is None:
            self._step(pod)

    def _step(self, pod: VirtualPod) -> None:
        duration_s = pod.begin_step()
        if duration_s is not None:
            self._later(pod, duration_s, lambda: self._end_step(pod))

    def _end_step(self, pod: VirtualPod) -> None:
        sampled, ended = pod.end_step()
        batch, load = pod.log.seal(), pod.load()
        self._later(pod, HOP_S, lambda: self._hear(pod, batch, load, sampled, ended))
        self._step(pod)

    def _hear(
        self, pod: VirtualPod, batch: EventBatch | None, load: LoadFields, sampled: list[str], ended: dict[str, int]
    ) -> None:
        if batch is not None:
            self.routing.index.apply(pod.key, batch.events)
        self.loads[pod.key] = load._replace(draining=pod.is_draining)
        for request_id in load.accepted:
            self.routing.placements.accept(request_id)
        for request_id in sampled:
            placed = self._placed.get(request_id)
            if placed is not None and self._outcomes[placed[0]].ttft_s == 0.0:
                self._outcomes[placed[0]].ttft_s = self.now_s - placed[1].at_s
        for request_id, cached_tokens in ended.items():
            self._settle(request_id, cached_tokens)

    def _settle(self, request_id: str, cached_tokens: int) -> None:
        placed = self._placed.pop(request_id, None)
        if placed is None:
            return
        number, arrival, query, view = placed
        self._outcomes[number].cached_tokens, self._outcomes[number].is_failed = cached_tokens, False
        self.routing.settle(
            request_id,
            view,
            prompt_tokens=query.prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=arrival.max_tokens,
        )

    def _later(self, pod: VirtualPod, delay_s: float, act: Callable[[], None]) -> None:
        """Unless the pod dies before."""
        version = pod.version

        def still() -> None:
            if pod.version == version:
                act()

        self.at(self.now_s + delay_s, still)

    def _snapshot(self, pod: VirtualPod) -> None:
        held = (Stored(wire_hash(digest), 0) for digest in pod.pool.cached_hashes())
        self.routing.index.apply(pod.key, [Cleared(), *held])

    def _warm_up(self, pod: VirtualPod) -> None:
        """The self-test, as a pod does before it is ready: it measures its own prefill rate."""
        pod.scheduler.add(
            GenerateSpec(
                request_id="warm-up",
                prompt_token_ids=(1,) * (self.shape.block_size - 1 or 1),
                max_tokens=1,
                prompt_logprobs=0,
            )
        )
        pod.begin_step()
        pod.end_step()
        self.loads[pod.key] = NO_LOAD._replace(
            free_blocks=self.shape.num_blocks, prefill_tokens_per_s=pod.rates.prefill_tokens_per_s
        )
