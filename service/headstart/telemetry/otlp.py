"""Exporters to an OTLP collector, chosen by OpenTelemetry's standard variables, with one setting of ours below them.

Owner of what is made here: the provider that gets it. Holds no state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from headstart.errors import ConfigError

Signal = Literal["TRACES", "METRICS"]

_HTTP = "http/protobuf"
_NUMBERS: Mapping[Signal, tuple[str, ...]] = {
    "TRACES": (
        "OTEL_BSP_SCHEDULE_DELAY",
        "OTEL_BSP_EXPORT_TIMEOUT",
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    ),
    "METRICS": ("OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"),
}
_GRPC_COMPRESSIONS = ("gzip",)
_HTTP_COMPRESSIONS = ("gzip", "deflate", "none")
_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_MISSING = "OTEL_EXPORTER_OTLP_PROTOCOL: OTLP over HTTP needs the extra 'otlp-http'; install it, or use grpc"


def span_exporter(otlp_endpoint: str | None, environ: Mapping[str, str]) -> SpanExporter | None:
    """None when spans go nowhere. Raises ConfigError that names a variable which cannot work, or is not installed."""
    if not _is_sent("TRACES", otlp_endpoint, environ):
        return None
    _check("TRACES", environ)
    endpoint = _own_endpoint("TRACES", otlp_endpoint, environ)
    if _uses_http("TRACES", environ):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
        except ImportError:
            raise ConfigError(_MISSING) from None
        return HttpExporter(endpoint=endpoint and f"{endpoint.rstrip('/')}/v1/traces")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    return GrpcExporter(endpoint=endpoint)


def metric_exporter(otlp_endpoint: str | None, environ: Mapping[str, str]) -> MetricExporter | None:
    """None when metrics are only scraped. Raises ConfigError as `span_exporter`."""
    if not _is_sent("METRICS", otlp_endpoint, environ):
        return None
    _check("METRICS", environ)
    endpoint = _own_endpoint("METRICS", otlp_endpoint, environ)
    if _uses_http("METRICS", environ):
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
        except ImportError:
            raise ConfigError(_MISSING) from None
        return HttpExporter(endpoint=endpoint and f"{endpoint.rstrip('/')}/v1/metrics")
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

    return GrpcExporter(endpoint=endpoint)


def _is_sent(signal: Signal, otlp_endpoint: str | None, environ: Mapping[str, str]) -> bool:
    """A collector is named, and neither the SDK nor this signal's exporter is switched off."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return False
    return bool(otlp_endpoint) or _has_variable(signal, environ)


def _check(signal: Signal, environ: Mapping[str, str]) -> None:
    """What the SDK would log as a traceback, and then replace by its defaults: even the certificate to trust."""
    prefixes = ("OTEL_EXPORTER_OTLP_", f"OTEL_EXPORTER_OTLP_{signal}_")
    for name in (*_NUMBERS[signal], *(f"{prefix}TIMEOUT" for prefix in prefixes)):
        if name in environ and not _is_above_0(environ[name], is_whole=name.startswith("OTEL_BSP_")):
            raise ConfigError(f"{name}: must be a number above 0, not {environ[name]!r}")
    known = _HTTP_COMPRESSIONS if _uses_http(signal, environ) else _GRPC_COMPRESSIONS
    for name in (f"{prefix}COMPRESSION" for prefix in prefixes):
        if name in environ and environ[name].strip().lower() not in known:
            raise ConfigError(f"{name}: {environ[name]!r} is not supported; use {' or '.join(known)}, or leave it out")
    for name in (prefix + kind for prefix in prefixes for kind in _FILES):
        if name in environ and not os.access(environ[name], os.R_OK):
            raise ConfigError(f"{name}: {environ[name]} cannot be read")


def _is_above_0(text: str, *, is_whole: bool) -> bool:
    try:
        return (int(text) if is_whole else float(text)) > 0
    except ValueError:
        return False


def _own_endpoint(signal: Signal, otlp_endpoint: str | None, environ: Mapping[str, str]) -> str | None:
    """None lets the exporter read the variables itself; they win over the setting."""
    return None if _has_variable(signal, environ) else otlp_endpoint


def _has_variable(signal: Signal, environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) for name in (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"))


def _uses_http(signal: Signal, environ: Mapping[str, str]) -> bool:
    """gRPC unless a variable says otherwise: the process speaks it anyway."""
    general = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", general)
    if protocol not in ("grpc", _HTTP):
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not supported; use grpc or {_HTTP}")
    return protocol == _HTTP
