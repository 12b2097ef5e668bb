"""The operator's own metrics: how long decisions take, how right they were, and what it knows of its pods.

Label sets are closed: no pod's name and no caller's word is one. Owner of the last reading: the fleet's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, get_args

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.pod import PodState
from headstart_operator.pods.replica import Resync

_DECISION_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)
_ERROR_TOKENS = (-4096.0, -1024.0, -256.0, -64.0, -16.0, -1.0, 0.0, 1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
_ERROR = "headstart_route_predicted_minus_actual_tokens"

VIEWS = (View(instrument_name=_ERROR, aggregation=ExplicitBucketHistogramAggregation(_ERROR_TOKENS)),)
"""For `open_signals`: an instrument for histograms drops what is below 0, so a sum's is shown as a histogram.

As of any histogram that has buckets below 0, Prometheus gets neither `_sum` nor `_count`: the last bucket counts all.
"""


class RouteMetrics:
    """What the balancer tells of its decisions."""

    def __init__(self, meter: Meter) -> None:
        self._decision = meter.create_histogram(
            "headstart_route_decision_seconds",
            unit="s",
            description="Time to rank the pods for a request and to place it.",
            explicit_bucket_boundaries_advisory=_DECISION_S,
        )
        self._error = meter.create_up_down_counter(
            _ERROR, description="Cached prompt tokens that were foretold, less those that the pod found."
        )

    def decided(self, seconds: float) -> None:
        """A pod was chosen."""
        self._decision.record(seconds)

    def ended(self, *, predicted_tokens: int, actual_tokens: int) -> None:
        """A request ended well on the pod that was chosen for it."""
        self._error.add(predicted_tokens - actual_tokens)


class _Reading(NamedTuple):
    index_blocks: int = 0
    resyncs: Mapping[Resync, int] = {}
    misfits: int = 0
    pods: Mapping[PodState, int] = {}
    requests: Mapping[str, int] = {}


class FleetMetrics:
    """What the fleet looks like. A collection runs in any thread, so it sees the last `refresh`, not the fleet.

    `count_requests` gives the requests in progress by state: waiting for a pod, or running.
    """

    def __init__(self, meter: Meter, fleet: Fleet, count_requests: Callable[[], Mapping[str, int]]) -> None:
        self._fleet = fleet
        self._count_requests = count_requests
        self._last = _Reading()
        meter.create_observable_gauge(
            "headstart_route_requests",
            callbacks=[lambda _: [Observation(n, {"state": state}) for state, n in self._last.requests.items()]],
            description="Requests in progress: those that wait for a pod, and the others.",
        )
        meter.create_observable_gauge(
            "headstart_index_blocks",
            callbacks=[lambda _: [Observation(self._last.index_blocks)]],
            description="Blocks in the index, each once however many pods hold it.",
        )
        meter.create_observable_counter(
            "headstart_index_resyncs",
            callbacks=[self._resyncs],
            description="Snapshots after a pod's first, by reason.",
        )
        meter.create_observable_counter(
            "headstart_pod_misfits",
            callbacks=[lambda _: [Observation(self._last.misfits)]],
            description="Pods that differ from others of their model in tokenizer or hash root.",
        )
        meter.create_observable_gauge(
            "headstart_pods",
            callbacks=[self._pods],
            description="Pods that were discovered, by their state.",
        )

    def refresh(self) -> None:
        """Read the fleet, on its event loop."""
        self._last = _Reading(
            index_blocks=self._fleet.index.num_blocks(),
            resyncs=dict(self._fleet.counters.resyncs),
            misfits=self._fleet.counters.misfits,
            pods=Counter(pod.state for pod in self._fleet.pods()),
            requests=self._count_requests(),
        )

    def _resyncs(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._last.resyncs.get(reason, 0), {"reason": reason}) for reason in get_args(Resync)]

    def _pods(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._last.pods.get(state, 0), {"state": state}) for state in get_args(PodState)]
