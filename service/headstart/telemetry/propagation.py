"""The W3C trace context, between the headers of a call and the span that is current. Holds no state of its own."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_FIELDS = frozenset(_PROPAGATOR.fields)


def incoming_context(headers: Iterable[tuple[str, str | bytes]]) -> Context:
    """The caller's trace, out of gRPC metadata or HTTP headers; an empty one when there is none or it is malformed."""
    found = {name.lower(): value for name, value in headers if name.lower() in _FIELDS}
    carrier = {name: value for name, value in found.items() if isinstance(value, str)}
    return _PROPAGATOR.extract(carrier, context=Context())


def outgoing_headers() -> tuple[tuple[str, str], ...]:
    """The trace of the span that is current, for the metadata of a call; nothing when there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context.get_current())
    return tuple(carrier.items())
