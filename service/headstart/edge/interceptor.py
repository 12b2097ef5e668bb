"""The one place where errors become gRPC statuses.

Every call ends in exactly one status, whatever its handler does: an error of our tree becomes its own status, a
cancellation that did not come from the client becomes UNAVAILABLE (gRPC would send nothing, and the client would wait
for ever), and anything else becomes INTERNAL with a short text whose details are in the log only.

Streaming handlers are coroutines that write to the context: a cancellation then reaches them at their own `await`, and
their `finally` runs at once. Holds no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from headstart.errors import HeadstartError, InvalidRequestError, UnavailableError

PUSHBACK_KEY = "grpc-retry-pushback-ms"

_LOGGER = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str | bytes], ...]
Handler = Callable[[Any, Any], Awaitable[Any]]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every unary-unary and unary-stream handler of the server."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(
            _with_one_status(inner, str(handler_call_details.method)),
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HeadstartError) -> None:
    """End the call with the error's status, its details and the trailers that were set so far. Does not return."""
    code = grpc.StatusCode[error.status]
    status = status_pb2.Status(code=code.value[0], message=str(error))
    extra: Metadata = ()
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.reason)
        status.details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if isinstance(error, UnavailableError):
        extra = ((PUSHBACK_KEY, str(round(error.retry_after_s * 1000))),)
    details: Metadata = tuple(rpc_status.to_status(status).trailing_metadata) if status.details else ()
    trailers = tuple(context.trailing_metadata() or ())
    await context.abort(code, str(error), trailers + extra + details)


def _with_one_status(inner: Handler, method: str) -> Handler:
    async def behavior(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if isinstance(request, Unread):
                raise request.error
            return await inner(request, context)
        except HeadstartError as error:
            await abort(context, error)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            # Usually the client is gone and this goes nowhere; if it is we who stop, the client must hear of it.
            with contextlib.suppress(Exception):
                await abort(context, UnavailableError("the server is stopping; try another pod"))
            raise
        except grpc.aio.InternalError:
            # gRPC could not send: the client is gone, and nobody is left to tell.
            _LOGGER.debug("%s lost its client", method, exc_info=True)
        except Exception as error:
            await abort(context, _unexpected(error, request, method))
        return None

    return behavior


def _unexpected(error: Exception, request: object, method: str) -> HeadstartError:
    reference = getattr(request, "request_id", "") or secrets.token_hex(8)
    _LOGGER.error("%s failed, reference %s", method, reference, exc_info=error)
    return HeadstartError(f"internal error; the log has the details under {reference}")


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for a request whose bytes were not made a message, and says why. Made where bytes are parsed."""

    error: HeadstartError


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Malformed bytes reach the handler as a value, since gRPC would answer them with our class names."""
    if deserialize is None:
        return None

    def decode(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return Unread(InvalidRequestError("request", "not a message of this method's type"))

    return decode


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
