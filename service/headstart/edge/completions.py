"""What an HTTP front needs from whatever runs requests, and the error behind a status that came from elsewhere.

A pod runs requests in its own engine, the operator on its pods; the front cannot tell them apart. Holds no state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import grpc
import grpc.aio

from headstart.contract.proto import inference_pb2
from headstart.edge.hop import Hop
from headstart.edge.interceptor import PUSHBACK_KEY
from headstart.edge.limits import Limits
from headstart.errors import HeadstartError, InvalidRequestError, UnavailableError


class Completions(Protocol):
    """Runs requests of the contract."""

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome."""

    async def models(self) -> Sequence[inference_pb2.Model]:
        """What is served now, without duplicates."""

    async def limits(self) -> Limits:
        """What is above them no model served here could take. Raises UnavailableError when there is none."""

    def generate(
        self,
        request: inference_pb2.GenerateRequest,
        *,
        deadline_s: float | None = None,
        tenant: str = "",
        hop: Hop | None = None,
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """The messages of one Generate call; `deadline_s` is on the monotonic clock. Raises HeadstartError.

        `tenant` is whose turn it takes where requests wait for each other; "" when no key tells. `hop` is what calls
        of one span share; None for a call that is alone. Whoever does not read to the end must `aclose` it: that
        cancels the request, and returns when its end is known and recorded.
        """


def error_of(error: grpc.aio.AioRpcError) -> HeadstartError:
    """The error of our tree that a server turned into this status, as far as the status tells."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, reason = details.partition(": ")
        return InvalidRequestError(field, reason) if reason else InvalidRequestError("request", details)
    if code is grpc.StatusCode.UNAVAILABLE:
        pushback_ms = dict(error.trailing_metadata() or ()).get(PUSHBACK_KEY, "")
        is_given = isinstance(pushback_ms, str) and pushback_ms.isdigit()
        return UnavailableError(details, retry_after_s=int(pushback_ms) / 1000 if is_given else 0.1)
    mapped = HeadstartError(details)
    mapped.status = code.name
    return mapped
