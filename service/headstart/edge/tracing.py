"""The span of each gRPC call that works for a user, continuing the caller's trace.

It stands inside `StatusInterceptor`, so that it sees errors before they are statuses. Watches, probes and reflection
have no span: they never end or mean nothing. Holds no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from opentelemetry.trace import Span, Tracer

from headstart.errors import HeadstartError
from headstart.telemetry.propagation import incoming_context
from headstart.telemetry.spans import mark_error, server_span

_TRACED_SERVICES = ("headstart.v1.Inference", "headstart.v1.Router")
# The caller's own faults are no errors of a server.
_CALLER_FAULTS = frozenset(
    {
        "OK",
        "CANCELLED",
        "INVALID_ARGUMENT",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "RESOURCE_EXHAUSTED",
    }
)

Handler = Callable[[Any, Any], Awaitable[Any]]


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """Server spans named after the method, current while its handler runs; handlers are coroutines."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method).lstrip("/")
        if handler is None or handler.request_streaming or method.partition("/")[0] not in _TRACED_SERVICES:
            return handler
        if handler.response_streaming:
            make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(
            self._with_span(inner, method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _with_span(self, inner: Handler, method: str) -> Handler:
        service = method.partition("/")[0]
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}

        async def behavior(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            parent = incoming_context(context.invocation_metadata() or ())
            with server_span(self._tracer, method, parent=parent, attributes=attributes) as span:
                status = "INTERNAL"
                try:
                    answer = await inner(request, context)
                    status = "OK"
                    return answer
                except HeadstartError as error:
                    status = error.status
                    raise
                except grpc.aio.AbortError:
                    status = _code_name(context.code())
                    raise
                except asyncio.CancelledError:
                    remaining_s = context.time_remaining()
                    has_expired = remaining_s is not None and remaining_s <= 0
                    status = "DEADLINE_EXCEEDED" if has_expired else "CANCELLED"
                    raise
                finally:
                    _set_status(span, status)

        return behavior


def _set_status(span: Span, status: str) -> None:
    span.set_attribute("rpc.response.status_code", status)
    span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[status].value[0])
    if status not in _CALLER_FAULTS:
        mark_error(span, status)
    elif status != "OK":
        span.set_attribute("error.type", status)


def _code_name(code: grpc.StatusCode | int | None) -> str:
    """gRPC's C layer hands its own numbers back."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((status.name for status in grpc.StatusCode if status.value[0] == code), "UNKNOWN")
