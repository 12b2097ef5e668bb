"""A pod's metrics: the engine's own counters and gauges, read when somebody collects, and the time of each step.

No metric costs the engine anything: it notes what it counts anyway. Owner of the step times that were taken from the
engine: the instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from headstart.contract.identity import PodIdentity
from headstart.engine.handle import EngineHandle
from headstart.engine.messages import EngineStats

_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEP_TOKENS = tuple(float(1 << exponent) for exponent in range(14))

_Read = Callable[[EngineStats], float]


class PodMetrics:
    """`headstart_*` of one engine, and what the pod is."""

    def __init__(self, meter: Meter, engine: EngineHandle, *, identity: PodIdentity) -> None:
        self._engine = engine
        self._step_seconds = meter.create_histogram(
            "headstart_step_seconds",
            unit="s",
            description="Time of a step: forward, sampling and commit.",
            explicit_bucket_boundaries_advisory=_STEP_S,
        )
        self._step_tokens = meter.create_histogram(
            "headstart_step_tokens",
            description="Tokens that a step computed.",
            explicit_bucket_boundaries_advisory=_STEP_TOKENS,
        )
        self._add_gauges(meter, identity.capacity_blocks)
        self._add_counters(meter)
        info = {
            "model": identity.model,
            "block_size": str(identity.block_size),
            "num_blocks": str(identity.capacity_blocks),
        }
        meter.create_observable_gauge(
            "headstart_pod_info",
            callbacks=[lambda _: [Observation(1, info)]],
            description="The served model, tokens in a KV block and usable KV blocks.",
        )

    def take_steps(self) -> None:
        """Count the steps since the last call. To be called before a collection, and now and then without one."""
        while self._engine.step_times:
            seconds, num_tokens = self._engine.step_times.popleft()
            self._step_seconds.record(seconds)
            self._step_tokens.record(num_tokens)

    def _add_gauges(self, meter: Meter, num_blocks: int) -> None:
        self._gauge(meter, "headstart_requests_running", "Requests with rows in the batch.", lambda s: s.running)
        self._gauge(meter, "headstart_requests_waiting", "Requests in the queue.", lambda s: s.waiting)
        self._gauge(
            meter,
            "headstart_kv_cache_usage_ratio",
            "Share of the KV blocks that requests hold.",
            lambda s: s.referenced_blocks / num_blocks,
        )

        def blocks(_: CallbackOptions) -> Iterable[Observation]:
            stats = self._engine.stats
            states = {"referenced": stats.referenced_blocks, "cached": stats.cached_blocks, "free": stats.free_blocks}
            return [Observation(count, {"state": state}) for state, count in states.items()]

        meter.create_observable_gauge(
            "headstart_kv_blocks",
            callbacks=[blocks],
            description="KV blocks: held by requests, idle with reusable content, and idle without.",
        )

    def _add_counters(self, meter: Meter) -> None:
        reads: dict[str, tuple[str, _Read]] = {
            "headstart_prefix_cache_queried_tokens": ("Prompt tokens looked up.", lambda s: s.queried_tokens),
            "headstart_prefix_cache_hit_tokens": ("Of those, tokens found.", lambda s: s.hit_tokens),
            "headstart_preemptions": ("Requests taken out of the batch to make room.", lambda s: s.num_preemptions),
            "headstart_computed_tokens": ("Tokens that went through the model.", lambda s: s.computed_tokens),
            "headstart_contained_faults": ("Faults that ended a request only.", lambda s: s.contained_faults),
        }
        for name, (description, read) in reads.items():
            meter.create_observable_counter(name, callbacks=[self._observer(read)], description=description)

    def _gauge(self, meter: Meter, name: str, description: str, read: _Read) -> None:
        meter.create_observable_gauge(name, callbacks=[self._observer(read)], description=description)

    def _observer(self, read: _Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(read(self._engine.stats))]
