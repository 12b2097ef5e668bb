"""Server spans: one per hop, ended whatever happens. Holds no state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer


@contextmanager
def server_span(tracer: Tracer, name: str, *, parent: Context, attributes: Mapping[str, str | int]) -> Iterator[Span]:
    """The span of a call that came in, current for its body: a coroutine, never a generator that yields to others."""
    span = tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
    token = context.attach(trace.set_span_in_context(span, parent))
    try:
        yield span
    finally:
        context.detach(token)
        span.end()


def mark_error(span: Span, error_type: str) -> None:
    """The call failed, with a word from a closed set: a status name. Texts stay out, they may quote a prompt."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))
