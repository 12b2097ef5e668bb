"""Where spans and metrics go: metrics to Prometheus when it asks, and both to an OTLP collector when one is named.

Without a collector no span is recorded. Nothing here is global: a process may hold several. Owner of the threads that
send: whoever opened the signals and shuts them down.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from headstart.errors import ConfigError
from headstart.telemetry.otlp import metric_exporter, span_exporter
from headstart.telemetry.vllm_names import vllm_families

_SCOPE = "headstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """A tracer, a meter and what the meter knows. Made by `open_signals`."""

    tracer: Tracer
    meter: Meter
    registry: CollectorRegistry
    closers: tuple[Callable[[], None], ...]
    has_vllm_names: bool = False

    def exposition(self) -> bytes:
        """Every metric, in Prometheus' text format. Takes milliseconds and calls observers; from any thread."""
        families = list(self.registry.collect())
        return generate_latest(_Collected((*families, *(vllm_families(families) if self.has_vllm_names else ()))))

    def shutdown(self, *, timeout_s: float) -> None:
        """Send what is left and stop. A collector that does not answer costs at most `timeout_s`; blocks so long."""
        threads = [threading.Thread(target=close, daemon=True) for close in self.closers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s / len(threads))


@dataclass(frozen=True, slots=True)
class _Collected:
    """Families that were read already, as the text's writer wants them."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """`span_processors` get the spans too; `views` are for instruments that cannot say themselves how they sum up."""

    span_processors: tuple[SpanProcessor, ...] = ()
    views: tuple[View, ...] = ()


NO_ADDITIONS = Additions()


def open_signals(
    *,
    service_name: str,
    instance_id: str,
    otlp_endpoint: str | None = None,
    has_vllm_names: bool = False,
    additions: Additions = NO_ADDITIONS,
    environ: Mapping[str, str] = os.environ,
) -> Signals:
    """`OTEL_SERVICE_NAME` wins over `service_name`, `OTEL_EXPORTER_OTLP_*ENDPOINT` over `otlp_endpoint`.

    With `has_vllm_names` the exposition has a pod's metrics twice, also as vLLM calls them. Raises ConfigError that
    tells of variables that cannot work.
    """
    exporters = span_exporter(otlp_endpoint, environ), metric_exporter(otlp_endpoint, environ)
    name = environ.get("OTEL_SERVICE_NAME") or service_name
    try:
        resource = Resource.create({"service.name": name, "service.instance.id": instance_id})
        return _open(resource, *exporters, additions=additions, has_vllm_names=has_vllm_names)
    except ValueError as error:
        raise ConfigError(f"the OTEL_* variables: {error}") from None


def _open(
    resource: Resource,
    to_spans: SpanExporter | None,
    to_metrics: MetricExporter | None,
    *,
    additions: Additions,
    has_vllm_names: bool,
) -> Signals:
    """Raises ValueError for variables that the SDK refuses."""
    tracer, close_tracer = _open_tracer(resource, to_spans, additions.span_processors)
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(registry=registry, scope_info_enabled=False)]
    if to_metrics is not None:
        readers.append(PeriodicExportingMetricReader(to_metrics))
    meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False, views=additions.views)
    return Signals(
        tracer=tracer,
        meter=meters.get_meter(_SCOPE),
        registry=registry,
        closers=(meters.shutdown, *close_tracer),
        has_vllm_names=has_vllm_names,
    )


def _open_tracer(
    resource: Resource, exporter: SpanExporter | None, span_processors: tuple[SpanProcessor, ...]
) -> tuple[Tracer, tuple[Callable[[], None], ...]]:
    processors = [*span_processors, *([BatchSpanProcessor(exporter)] if exporter is not None else [])]
    if not processors:
        return NoOpTracer(), ()
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    for processor in processors:
        tracers.add_span_processor(processor)
    return tracers.get_tracer(_SCOPE), (tracers.shutdown,)
