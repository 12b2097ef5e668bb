"""Whether a message may be parsed at all: gRPC parses on the event loop, where every stream waits for it.

What is larger than any request that could be served is refused by its outer fields, whose sizes are read without
looking into them. The checks of what a field holds are `validation`'s. Holds no state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from headstart.contract.prefix import DIGEST_BYTES
from headstart.contract.wire import outer_fields
from headstart.edge.interceptor import Unread
from headstart.edge.limits import Limits
from headstart.errors import HeadstartError, TooLargeError

ALWAYS_PARSED_BYTES = 4 << 20
"""Takes some 10 ms a MiB, and 25 where each byte or two is a message of its own."""

_SMALL_FIELD_BYTES = 64 << 10
_ID_BYTES = 6  # a tag and 32 bits of seven each
_FRAME_BYTES = 16  # tags and lengths around one thing within a field
_RESUMED_CONTEXTS = 8  # that the choices of one continuation share
_COUNTED_HASHES = 16 << 10  # a microsecond or two each; as many blocks make a context of 256 K tokens


class SizeInterceptor(grpc.aio.ServerInterceptor):
    """Stands inside `StatusInterceptor`, which answers what is refused here.

    `limits` gives those in effect, and raises HeadstartError while there are none.
    """

    def __init__(self, limits: Callable[[], Limits]) -> None:
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer
        decode = self._bounded(parse, str(handler_call_details.method))
        if handler.request_streaming:  # reflection alone, which refuses an empty question
            make, inner = grpc.stream_stream_rpc_method_handler, handler.stream_stream
            decode = _emptied(parse)
        elif handler.response_streaming:
            make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(inner, request_deserializer=decode, response_serializer=handler.response_serializer)

    def _bounded(self, parse: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
        def decode(raw: bytes) -> Any:
            if len(raw) > ALWAYS_PARSED_BYTES:
                try:
                    check_fields(raw, _request_type(method), self._limits())
                except HeadstartError as error:
                    return Unread(error)
            return parse(raw)

        return decode


def _emptied(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda raw: parse(raw if len(raw) <= _SMALL_FIELD_BYTES else b"")


def check_fields(raw: bytes, kind: Descriptor, limits: Limits) -> None:
    """Raises TooLargeError that names the first field of `kind` that is too large, or the largest of far too many.

    Raises InvalidRequestError for bytes that are no message. Its work is bounded by the limits, not by what was sent.
    """
    most, most_fields = _most_bytes(limits), _most_fields(kind, limits)
    sizes: Counter[int] = Counter()
    for count, (number, start, _, stop) in enumerate(outer_fields(raw), start=1):
        sizes[number] += stop - start
        name = _name(kind, number)
        allowed = most.get(name, _SMALL_FIELD_BYTES)
        if sizes[number] > allowed:
            raise TooLargeError(name, f"more than {allowed} bytes; no request that could be served has so many")
        if count > most_fields:
            name = _name(kind, sizes.most_common(1)[0][0])
            raise TooLargeError(name, f"more than {most_fields} fields; no request that could be served has so many")


def _most_bytes(limits: Limits) -> Mapping[str, int]:
    """The most that a field has on the wire in a request that could be served, its own tag and length included."""
    ids = _FRAME_BYTES + _ID_BYTES * limits.max_len
    pieces = limits.max_messages + limits.max_content_parts + limits.max_tools
    return {
        "text": limits.max_text_bytes + _FRAME_BYTES,
        "token_ids": ids,
        "chat": limits.max_text_bytes + _FRAME_BYTES * (pieces + 1),
        "sampling": _SMALL_FIELD_BYTES + _FRAME_BYTES * limits.max_logit_bias,
        "stop_strings": limits.max_stop_strings * (limits.max_stop_string_bytes + _FRAME_BYTES),
        "resume": min(limits.max_n, _RESUMED_CONTEXTS) * ids + _FRAME_BYTES,
        "hashes": (DIGEST_BYTES + 2) * limits.max_len,
    }


def _most_fields(kind: Descriptor, limits: Limits) -> int:
    """A repeated field is that many on the wire, but for numbers, which every client packs into one."""
    repeated = {
        "stop_strings": limits.max_stop_strings,
        "stop_token_ids": limits.max_stop_token_ids,
        "hashes": min(limits.max_len, _COUNTED_HASHES),
    }
    return sum(repeated.get(field.name, 1) for field in kind.fields)


def _request_type(method: str) -> Descriptor:
    """Of "/package.Service/Method"."""
    name = method.lstrip("/").replace("/", ".")
    return descriptor_pool.Default().FindMethodByName(name).input_type


def _name(kind: Descriptor, number: int) -> str:
    field = kind.fields_by_number.get(number)
    return field.name if field is not None else f"#{number}"
