"""Pods in virtual time behind the router's own decision: the real scheduler, block manager and event log in each of
them, a formula for how long a step takes, and a clock that jumps from event to event. Equal inputs give equal runs.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.codec import LoadFields
from headstart.contract.events import Cleared, EventBatch, Stored
from headstart.contract.prefix import block_hashes, wire_hash
from headstart.contract.request import GenerateSpec
from headstart.core.step import StepOutput, StepPlan
from headstart.engine.rates import StepRates
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler
from headstart_operator.identity import GroupKey, PodKey
from headstart_operator.routing import Routing
from headstart_operator.score import Policy, Query
from headstart_operator.view import NO_LOAD, PodView

ROOT = bytes(32)
HOP_S = 0.0005
GROUP = GroupKey("m", "t", "r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of every pod. A step takes `step_s + tokens * token_s` seconds."""

    num_blocks: int = 600
    block_size: int = 16
    step_s: float = 0.002
    token_s: float = 0.000025
    limits: SchedulerLimits = field(
        default_factory=lambda: SchedulerLimits(long_prefill_token_threshold=128, max_len=1_000_000)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request of `group` that comes at `at_s`."""

    at_s: float
    group: int
    prompt: tuple[int, ...]
    max_tokens: int


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


class VirtualPod:
    """One process of a pod. `version` tells apart what was scheduled for it before and after it died."""

    def __init__(self, name: str, shape: Shape, clock: Callable[[], float]) -> None:
        self.name = name
        self.shape = shape
        self.clock = clock
        self.version = 0
        self.is_draining = False
        self.restart()

    def restart(self) -> None:
        self.version += 1
        self.is_up = True
        self.plan: StepPlan | None = None
        self.log = EventLog()
        self.key = PodKey(self.name, str(self.version))
        self.pool = BlockPool(self.shape.num_blocks, self.log)
        manager = BlockManager(self.pool, block_size=self.shape.block_size, root=ROOT)
        self.scheduler = Scheduler(manager, self.shape.limits, clock=self.clock)
        self.rates = StepRates()
        self.accepted: list[str] = []
        self.tokens = random.Random(f"{self.name} {self.version}")

    def begin_step(self) -> float | None:
        """Plan a step; how long it takes, None when there is nothing to do."""
        if not self.scheduler.has_work:
            return None
        self.plan = self.scheduler.schedule()
        return self.shape.step_s + self.plan.total_tokens * self.shape.token_s

    def end_step(self) -> tuple[list[str], dict[str, int]]:
        """Commit it: requests that sampled, and for those that ended how many tokens were cached."""
        plan = self.plan
        assert plan is not None
        self.plan = None
        self.rates.observe(plan, self.shape.step_s + plan.total_tokens * self.shape.token_s)
        sampled = [[self.tokens.randrange(1 << 30, 1 << 31)] if does else [] for does in plan.samples]
        updates = self.scheduler.commit(plan, StepOutput(sampled))
        ended = {name: stats.cached_tokens for name, (_, stats) in updates.finished.items()}
        sampled_ids = [name for name, new in zip(updates.request_ids, updates.new_tokens, strict=True) if new]
        return sampled_ids, ended

    def load(self) -> LoadFields:
        stats = self.scheduler.stats
        accepted, self.accepted = tuple(self.accepted), []
        return LoadFields(
            seq=self.log.seq,
            running=stats.running,
            waiting=stats.waiting,
            pending_prefill_tokens=stats.pending_prefill_tokens,
            accepted=accepted,
            free_blocks=stats.free_blocks,
            prefill_tokens_per_s=self.rates.prefill_tokens_per_s,
            decode_step_s=self.rates.decode_step_s,
            step_age_s=0.0,
            draining=self.is_draining,
        )


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


def shared_prefix_traffic(
    num_requests: int,
    *,
    rate: float,
    weights: Sequence[float],
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
    seed: int,
    start_s: float = 0.0,
) -> list[Arrival]:
    """Poisson arrivals, `rate` a second: each has the prefix of its group, drawn by weight, and its own suffix."""
    source = random.Random(seed)
    prefixes = [tuple(source.randrange(1 << 29) for _ in range(prefix_tokens)) for _ in weights]
    arrivals, at_s = [], start_s
    for _ in range(num_requests):
        at_s += source.expovariate(rate)
        (group,) = source.choices(range(len(weights)), weights)
        suffix = tuple(source.randrange(1 << 29, 1 << 30) for _ in range(suffix_tokens))
        arrivals.append(Arrival(at_s=at_s, group=group, prompt=prefixes[group] + suffix, max_tokens=output_tokens))
    return arrivals
