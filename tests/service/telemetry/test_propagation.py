"""The W3C trace context, in and out."""

from __future__ import annotations

import pytest
from headstart.telemetry.propagation import incoming_context, outgoing_headers
from headstart.telemetry.spans import server_span
from opentelemetry import trace
from opentelemetry.trace import NoOpTracer

_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_without_a_tracer_the_callers_trace_passes_through_unchanged() -> None:
    parent = incoming_context([("Traceparent", _PARENT), ("tracestate", "a=b"), ("x-other", b"\x00")])
    with server_span(NoOpTracer(), "hop", parent=parent, attributes={}):
        assert dict(outgoing_headers()) == {"traceparent": _PARENT, "tracestate": "a=b"}
    assert outgoing_headers() == ()


@pytest.mark.parametrize("value", ["", "00-zz-00-01", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", b"\xff"])
def test_a_malformed_parent_is_none(value: str | bytes) -> None:
    context = incoming_context([("traceparent", value)])
    assert not trace.get_current_span(context).get_span_context().is_valid


def test_the_span_is_no_longer_current_after_an_error() -> None:
    with (
        pytest.raises(ValueError, match="broken"),
        server_span(NoOpTracer(), "hop", parent=incoming_context([("traceparent", _PARENT)]), attributes={}),
    ):
        raise ValueError("broken")
    assert outgoing_headers() == ()
