"""Where spans and metrics go, by the standard variables and our one setting."""

from __future__ import annotations

import threading

import pytest
from headstart.errors import ConfigError
from headstart.telemetry.otlp import metric_exporter, span_exporter
from headstart.telemetry.signals import Additions, Signals, open_signals
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

_COLLECTOR = "http://127.0.0.1:4317"


def test_without_a_collector_no_span_is_recorded_and_metrics_can_still_be_scraped() -> None:
    signals = open_signals(service_name="pod", instance_id="pod-0", environ={})
    signals.meter.create_counter("headstart_things").add(2)
    with signals.tracer.start_as_current_span("a") as span:
        assert not span.is_recording()
    text = signals.exposition().decode()
    assert "headstart_things_total 2.0" in text
    assert 'service_name="pod"' in text
    signals.shutdown(timeout_s=5)


def test_two_in_one_process_do_not_mix() -> None:
    first, second = (open_signals(service_name="pod", instance_id=name, environ={}) for name in ("a", "b"))
    first.meter.create_counter("headstart_things").add(1)
    assert b"headstart_things" not in second.exposition()
    for signals in (first, second):
        signals.shutdown(timeout_s=5)


def test_the_standard_service_name_wins() -> None:
    spans = InMemorySpanExporter()
    signals = open_signals(
        service_name="pod",
        instance_id="pod-0",
        additions=Additions(span_processors=(SimpleSpanProcessor(spans),)),
        environ={"OTEL_SERVICE_NAME": "mine"},
    )
    signals.tracer.start_span("a").end()
    (span,) = spans.get_finished_spans()
    assert span.resource.attributes["service.name"] == "mine"
    assert span.resource.attributes["service.instance.id"] == "pod-0"
    signals.shutdown(timeout_s=5)


@pytest.mark.parametrize(
    ("environ", "setting", "is_sent"),
    [
        ({}, None, False),
        ({}, _COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": _COLLECTOR}, None, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": _COLLECTOR}, None, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": _COLLECTOR}, None, False),
        ({"OTEL_SDK_DISABLED": "true"}, _COLLECTOR, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, _COLLECTOR, False),
    ],
)
def test_spans_are_sent_when_a_collector_is_named_and_nothing_forbids_it(
    environ: dict[str, str], setting: str | None, is_sent: bool
) -> None:
    exporter = span_exporter(setting, environ)
    assert (exporter is not None) == is_sent
    if exporter is not None:
        assert isinstance(exporter, GrpcExporter)
        exporter.shutdown()


def test_otlp_over_http_goes_to_the_path_of_each_signal() -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    spans, metrics = span_exporter("http://127.0.0.1:4318/", environ), metric_exporter("http://127.0.0.1:4318", environ)
    assert isinstance(spans, HttpExporter)
    assert isinstance(metrics, HttpMetricExporter)
    assert spans._endpoint == "http://127.0.0.1:4318/v1/traces"
    assert metrics._endpoint == "http://127.0.0.1:4318/v1/metrics"
    spans.shutdown()
    metrics.shutdown()


def test_an_unknown_protocol_is_refused_at_the_start() -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(ConfigError, match="http/json"):
        open_signals(service_name="pod", instance_id="pod-0", otlp_endpoint=_COLLECTOR, environ=environ)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "abc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1.5"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", ""),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/nowhere"),
    ],
)
def test_a_variable_that_cannot_work_is_refused_at_the_start_with_its_name(variable: str, value: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": _COLLECTOR, variable: value}
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        open_signals(service_name="pod", instance_id="pod-0", environ=environ)
    open_signals(service_name="pod", instance_id="pod-0", environ={variable: value}).shutdown(timeout_s=5)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "99999", "max_export_batch_size"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    ],
)
def test_what_the_sdk_refuses_is_refused_in_one_line(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=rf"^the OTEL_\* variables: {reason}"):
        open_signals(service_name="pod", instance_id="pod-0", otlp_endpoint=_COLLECTOR)


def test_an_exporter_that_hangs_does_not_hold_up_the_exit() -> None:
    is_released = threading.Event()
    signals = Signals(
        tracer=NoOpTracer(),
        meter=NoOpMeter("m"),
        registry=CollectorRegistry(),
        closers=(lambda: is_released.wait(60),),  # type: ignore[arg-type]
    )
    signals.shutdown(timeout_s=0.01)
    assert not is_released.is_set()
    is_released.set()
