"""`grpc.health.v1`, answered by asking.

A status that someone must remember to set goes stale; here each service name has a probe, which is called when a client
asks, and four times a second while one watches. Knows nothing of engines: the probes come from outside. Holds no
state but the event that ends its watches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

Probe = Callable[[], bool]

_POLL_S = 0.25


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs have no types
    """`probes` maps a service name to whether it is being served now."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = probes
        self._closed = asyncio.Event()

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        probe = self._probes.get(request.service)
        if probe is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service: unknown to the health check")
        return health_pb2.HealthCheckResponse(status=_status(probe))

    async def List(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ARG002, N802
        """Every service name and its status now."""
        statuses = {name: health_pb2.HealthCheckResponse(status=_status(probe)) for name, probe in self._probes.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: N802
        """The status now and whenever it changes. An unknown service is a status here, not an error."""
        probe = self._probes.get(request.service)
        sent = None
        while not self._closed.is_set():
            status = _status(probe)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), _POLL_S)

    def close(self) -> None:
        """End the watches, so that a server can stop."""
        self._closed.set()


def _status(probe: Probe | None) -> Any:
    statuses = health_pb2.HealthCheckResponse
    if probe is None:
        return statuses.SERVICE_UNKNOWN
    return statuses.SERVING if probe() else statuses.NOT_SERVING
