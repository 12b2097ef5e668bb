"""The gRPC servers of a pod, and how they come up and go down. Knows nothing of what the services do.

Owner of the two `grpc.aio` servers: the task that runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry.trace import Tracer

from headstart.contract.proto import inference_pb2_grpc, prefix_cache_pb2_grpc
from headstart.edge.access import AuthInterceptor
from headstart.edge.entrance import Entrance
from headstart.edge.health import HealthServicer
from headstart.edge.interceptor import StatusInterceptor
from headstart.edge.limits import Limits
from headstart.edge.listening import (
    MAX_CONCURRENT_CALLS,
    MAX_METADATA_BYTES,
    MAX_PROBE_BYTES,
    ROUTER_METADATA_BYTES,
    bind,
    server_options,
)
from headstart.edge.message_sizes import SizeInterceptor
from headstart.edge.tracing import TracingInterceptor
from headstart.engine.handle import EngineHandle
from headstart.server.completions import PodCompletions
from headstart.server.inference import InferenceServicer
from headstart.server.pod_health import PodHealth
from headstart.server.prefix_cache import PrefixCacheServicer

_SERVICES = ("headstart.v1.Inference", "headstart.v1.PrefixCache", "grpc.health.v1.Health", reflection.SERVICE_NAME)
_LAST_WORDS_S = 0.5  # for calls that were told to end to send their last messages

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodServices:
    """What a pod answers. Built by the composition root, around one engine."""

    engine: EngineHandle
    completions: PodCompletions
    inference: InferenceServicer
    prefix_cache: PrefixCacheServicer
    tracer: Tracer
    entrance: Entrance
    limits: Limits


class HealthServer:
    """Plaintext health on a port of its own, up before the model is loaded and until the process ends."""

    def __init__(self, health: PodHealth, *, host: str, port: int) -> None:
        self._servicer = HealthServicer(health.probes())
        self._server = grpc.aio.server(options=server_options(max_receive_bytes=MAX_PROBE_BYTES))
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        self.port = bind(self._server, host, port)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        self._servicer.close()
        await self._server.stop(None)


class PodServer:
    """Inference, PrefixCache, health and reflection on one port. `port` is the one that was bound, for a wish of 0."""

    def __init__(self, services: PodServices, health: PodHealth, *, host: str, port: int) -> None:
        self._services = services
        self._pod_health = health
        self._health = HealthServicer(health.probes())
        gate = services.entrance.gate
        guards = [AuthInterceptor(gate)] if gate is not None else []
        self._server = grpc.aio.server(
            interceptors=[
                StatusInterceptor(),
                *guards,
                SizeInterceptor(lambda: services.limits),
                TracingInterceptor(services.tracer),
            ],
            # What a router takes a pod must take too.
            options=server_options(max_metadata_bytes=MAX_METADATA_BYTES + ROUTER_METADATA_BYTES),
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(services.inference, self._server)
        prefix_cache_pb2_grpc.add_PrefixCacheServicer_to_server(services.prefix_cache, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(_SERVICES, self._server)
        self.port = bind(self._server, host, port, services.entrance.tls)

    async def start(self) -> None:
        await self._server.start()

    async def drain(self, *, delay_s: float, timeout_s: float) -> None:
        """Leave in order: not ready from now on, calls still taken for `delay_s`, then only finished for `timeout_s`.

        Endpoint lists lag behind readiness: the delay is for clients that still come. What runs at the end is `stop`'s.
        """
        self._pod_health.leave()
        self._services.prefix_cache.leave()
        await asyncio.sleep(delay_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._services.engine.drain(), timeout_s)

    async def stop(self) -> None:
        """Now, engine and all: calls in progress end UNAVAILABLE with what they have, whatever step is running.

        A client that does not read is cut off, a step that does not end is left behind.
        """
        self._services.completions.stop()
        self._services.prefix_cache.stop()
        await self._services.engine.close(timeout_s=_LAST_WORDS_S)
        self._health.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.stop(_LAST_WORDS_S), 2 * _LAST_WORDS_S)


async def serve_until_stopped(
    server: PodServer,
    engine: EngineHandle,
    signals: asyncio.Queue[int],
    *,
    drain_delay_s: float,
    drain_timeout_s: float,
) -> bool:
    """Serve until a signal or the engine's death, then take server and engine down.

    SIGTERM starts the drain; so does SIGINT, without the delay, since no router sends to a pod at a terminal. A second
    signal ends it at once. True after a stop that was asked for, False when the engine broke: the process should then
    exit with an error.
    """
    await server.start()
    died = asyncio.ensure_future(engine.wait_exit())
    asked = asyncio.ensure_future(signals.get())
    await asyncio.wait({died, asked}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        delay_s = 0.0 if asked.result() == signal.SIGINT else drain_delay_s
        _LOGGER.info(
            "draining: %.0f s delay, then at most %.0f s; a second signal ends it at once", delay_s, drain_timeout_s
        )
        drained = asyncio.ensure_future(server.drain(delay_s=delay_s, timeout_s=drain_timeout_s))
        asked = asyncio.ensure_future(signals.get())
        await asyncio.wait({died, asked, drained}, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
    asked.cancel()
    has_broken = died.done()
    died.cancel()  # a step that outlasts the stop must not hold up the exit
    await server.stop()
    return not has_broken
