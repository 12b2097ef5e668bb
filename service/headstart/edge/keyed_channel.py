"""A gRPC channel whose calls bring an API key. gRPC's own way needs TLS, which a mesh may do outside of the process.

Works for both kinds of channels. It costs nothing per message: only the start of a call passes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headstart.edge.access import HEADER


class KeyedChannel:
    """As much of a channel as stubs and their owners use. `close` is for channels of grpc.aio.

    `key` is asked at the start of each call, since a key may be replaced while a connection lasts.
    """

    def __init__(self, channel: Any, key: Callable[[], str]) -> None:
        self._channel = channel
        self._key = key

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_stream(*args, **kwargs))

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def _keyed(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, *, metadata: Sequence[tuple[str, str | bytes]] | None = None, **kwargs: Any) -> Any:
            return start(request, metadata=(*(metadata or ()), (HEADER, f"Bearer {self._key()}")), **kwargs)

        return call
