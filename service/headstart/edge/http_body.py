"""Reads a request's body as far as it may go: never more bytes than allowed, neither as sent nor unpacked.

Knows nothing of what the body holds. Holds no state.
"""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import web

from headstart.errors import InvalidRequestError, TooLargeError

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_DEFLATE_METHOD = 8  # in the low bits of a zlib header; clients also send the bare stream


async def read_body(http_request: web.Request, *, max_bytes: int) -> bytes:
    """The body, unpacked. Whoever serves must have told aiohttp not to unpack by itself.

    Raises TooLargeError as soon as it is known, and InvalidRequestError for a coding that is broken or not read here.
    """
    coding = ",".join(http_request.headers.getall("Content-Encoding", ())).strip().lower()
    if coding not in ("", "identity", "gzip", "deflate"):
        raise InvalidRequestError("content-encoding", "only gzip and deflate are read here")
    if (http_request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    received = bytearray()
    try:
        async for part in http_request.content.iter_any():
            received += part
            if len(received) > max_bytes:
                raise _too_large(max_bytes)
    except web.RequestPayloadError:
        raise InvalidRequestError("body", "does not keep to its transfer encoding") from None
    if coding in ("", "identity") or not received:
        return bytes(received)
    return await asyncio.to_thread(_unpacked, bytes(received), coding, max_bytes)


def _unpacked(packed: bytes, coding: str, max_bytes: int) -> bytes:
    is_bare = coding == "deflate" and packed[0] & 0x0F != _DEFLATE_METHOD
    window = -zlib.MAX_WBITS if is_bare else _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS
    unpacker = zlib.decompressobj(window)
    try:
        unpacked = unpacker.decompress(packed, max_bytes + 1)
    except zlib.error:
        raise InvalidRequestError("body", f"broken {coding}") from None
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequestError("body", f"broken {coding}")
    return unpacked


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError("body", f"at most {max_bytes} bytes are read; the longest prompt needs no more")
