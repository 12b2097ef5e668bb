"""Brings an operator up and takes it down: health first, then the pods, then the port for requests.

The only place that knows all parts. Owner of a running operator's servers and fleet: whoever called it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from headstart.contract.proto import router_pb2_grpc
from headstart.edge.access import AuthInterceptor
from headstart.edge.entrance import Entrance
from headstart.edge.health import HealthServicer, Probe
from headstart.edge.interceptor import StatusInterceptor
from headstart.edge.listening import (
    MAX_CONCURRENT_CALLS,
    MAX_PROBE_BYTES,
    bind,
    check_port,
    server_options,
    stop_signals,
)
from headstart.edge.message_sizes import SizeInterceptor
from headstart.edge.names import pod_name
from headstart.edge.tracing import TracingInterceptor
from headstart.edge.web import Web
from headstart.telemetry.requests import RequestInstruments
from headstart.telemetry.signals import Additions, Signals, open_signals

from headstart_operator.config import OperatorConfig
from headstart_operator.decision.catalog import Catalog
from headstart_operator.pods.connection import PodConnector
from headstart_operator.pods.fleet import Fleet
from headstart_operator.serving.balancer import Balancer
from headstart_operator.serving.inference_service import SERVICE, InferenceService
from headstart_operator.serving.metrics import VIEWS, FleetMetrics, RouteMetrics
from headstart_operator.serving.proxy import Proxy
from headstart_operator.serving.recorder import RouteRecorder
from headstart_operator.serving.router_service import RouterServicer
from headstart_operator.source import Source, open_source
from headstart_operator.supervisor import keep_running

_SERVICES = (SERVICE, "headstart.v1.Router", "grpc.health.v1.Health", reflection.SERVICE_NAME)
_LAST_WORDS_S = 0.5
_LEARN_INTERVAL_S = 0.1
_LEAST_CONNECTION_AGE_S = 1.0
_MOST_CONNECTION_AGE_S = 30.0
# What a drain leaves running is ended by `stop`, in our words, before gRPC would cut it off.
_GRACE_BEYOND_S = 10.0
# For a collector to take the last spans and metrics; one that is gone must not hold up the exit.
_LAST_SIGNALS_S = 2.0

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class OperatorHealth:
    """Ready from the first complete picture of the pods on, until it leaves. Without pods it is ready too."""

    fleet: Fleet
    is_leaving: bool = False

    def probes(self) -> dict[str, Probe]:
        return {
            "": self._is_ready,
            "readiness": self._is_ready,
            "startup": lambda: self.fleet.is_ready,
            "liveness": lambda: True,  # the event loop that answers is the one that works
        }

    def _is_ready(self) -> bool:
        return self.fleet.is_ready and not self.is_leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator that takes requests. The ports are those that were bound."""

    fleet: Fleet
    catalog: Catalog
    balancer: Balancer
    proxy: Proxy
    health: OperatorHealth
    server: grpc.aio.Server
    health_server: grpc.aio.Server
    health_servicer: HealthServicer
    entrance: Entrance
    web: Web
    signals: Signals
    grpc_port: int
    health_port: int
    source: Source = field(repr=False)
    learning: asyncio.Task[None] = field(repr=False)

    async def wait_ready(self) -> None:
        """Until it knows its pods, or has waited long enough for them."""
        await self.fleet.wait_ready()

    async def drain(self, *, delay_s: float, timeout_s: float) -> None:
        """Not ready from now on, requests still taken for `delay_s`, then only finished for `timeout_s`.

        Another router may write statuses at once. Clients leave during the delay, for no connection lives as long; who
        is still there is told to go at its end.
        """
        self.health.is_leaving = True
        await asyncio.gather(self.source.stop(), asyncio.sleep(delay_s))
        self.health_servicer.close()
        closing = asyncio.ensure_future(self.server.stop(timeout_s + _GRACE_BEYOND_S))
        await self.web.refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # Not the requests that run: one may have come that no handler has seen yet.
                await asyncio.shield(closing)
                while self.web.num_connections:
                    await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End everything now; calls in progress end UNAVAILABLE, their choices `cancelled`."""
        self.learning.cancel()
        await asyncio.gather(self.learning, return_exceptions=True)
        await self.balancer.close()
        self.proxy.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                while self.balancer.num_running:
                    await asyncio.sleep(0.01)
        await self.web.stop()
        await self.entrance.stop()
        self.health_servicer.close()
        for server in (self.server, self.health_server):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.stop(_LAST_WORDS_S), 2 * _LAST_WORDS_S)
        await self.catalog.close()
        await self.source.stop()
        await self.fleet.close()
        await self.source.close()
        await asyncio.to_thread(self.signals.shutdown, timeout_s=_LAST_SIGNALS_S)


async def start_operator(config: OperatorConfig) -> Operator:
    """An operator whose ports are open; it becomes ready by itself. Raises ConfigError that says what to change."""
    _check_ports(config)
    entrance = Entrance(config.entrance)
    connect = PodConnector(config.pod_access).connect
    source = open_source(config)
    signals = open_signals(
        service_name="headstart-operator",
        instance_id=pod_name(os.environ),
        otlp_endpoint=config.otlp_endpoint,
        additions=Additions(views=VIEWS),
    )
    catalog = Catalog(max_prompt_bytes=config.max_prompt_bytes)
    fleet = Fleet(source.pods, fleet_secret=config.fleet_secret, pools=source.pools, connect=connect)
    metrics = RouteMetrics(signals.meter)
    balancer = Balancer(fleet, catalog, queue_limits=config.queue_limits, metrics=metrics, pools=source.pools)
    recorder = RouteRecorder(RequestInstruments(signals.meter), captures_content=config.captures_content)
    proxy = Proxy(fleet, balancer, recorder=recorder)
    health = OperatorHealth(fleet)
    health_servicer = HealthServicer(health.probes())
    server = _server(
        _interceptors(entrance, signals, catalog),
        InferenceService(proxy, balancer, gate=entrance.gate),
        RouterServicer(fleet, balancer),
        health_servicer,
        config.drain_delay_s,
    )
    health_server = grpc.aio.server(options=server_options(max_receive_bytes=MAX_PROBE_BYTES))
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, health_server)
    grpc_port = bind(server, config.host, config.grpc_port, entrance.tls)
    health_port = bind(health_server, config.host, config.health_port)
    web = await _open_web(config, entrance, signals, health)
    web.attach(proxy, refresh=FleetMetrics(signals.meter, fleet, balancer.count_requests).refresh)
    entrance.start()
    fleet.start(is_prepared=catalog.is_prepared)
    source.start(fleet)
    await health_server.start()
    await server.start()
    return Operator(
        fleet=fleet,
        catalog=catalog,
        balancer=balancer,
        proxy=proxy,
        health=health,
        server=server,
        health_server=health_server,
        health_servicer=health_servicer,
        entrance=entrance,
        web=web,
        signals=signals,
        grpc_port=grpc_port,
        health_port=health_port,
        source=source,
        learning=asyncio.create_task(keep_running(partial(_keep_learning, fleet, catalog), "learning of pods")),
    )


def _check_ports(config: OperatorConfig) -> None:
    """Before anything is built that would have to be taken down again. Raises ConfigError."""
    for port in (config.grpc_port, config.health_port, config.http_port, config.metrics_port):
        check_port(config.host, port)


def _interceptors(entrance: Entrance, signals: Signals, catalog: Catalog) -> list[grpc.aio.ServerInterceptor]:
    guards = [AuthInterceptor(entrance.gate)] if entrance.gate is not None else []
    return [StatusInterceptor(), *guards, SizeInterceptor(catalog.widest_limits), TracingInterceptor(signals.tracer)]


def _server(
    interceptors: list[grpc.aio.ServerInterceptor],
    inference: InferenceService,
    router: RouterServicer,
    health: HealthServicer,
    drain_delay_s: float,
) -> grpc.aio.Server:
    server = grpc.aio.server(
        interceptors=interceptors,
        options=server_options(max_connection_age_s=_connection_age_s(drain_delay_s)),
        maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
    )
    server.add_generic_rpc_handlers((inference.handler(),))
    router_pb2_grpc.add_RouterServicer_to_server(router, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(_SERVICES, server)
    return server


def _connection_age_s(drain_delay_s: float) -> float | None:
    """So old that clients have changed to other routers before the delay of a drain is over, or None when it is short.

    gRPC's clients keep a connection for as long as it works, and a Service chooses a router for connections only.
    """
    age_s = drain_delay_s / 2
    return None if age_s < _LEAST_CONNECTION_AGE_S else min(age_s, _MOST_CONNECTION_AGE_S)


async def _open_web(config: OperatorConfig, entrance: Entrance, signals: Signals, health: OperatorHealth) -> Web:
    web = Web(
        signals,
        probes=health.probes(),
        entrance=entrance,
        host=config.host,
        http_port=config.http_port,
        metrics_port=config.metrics_port,
    )
    await web.start()
    return web


async def serve(config: OperatorConfig, *, on_ready: Callable[[Operator], None]) -> int:
    """One operator until a signal has it drain, SIGINT without the delay; a second signal ends it at once.

    The exit code.
    """
    operator = await start_operator(config)
    try:
        with stop_signals() as signals:
            ready = asyncio.ensure_future(operator.wait_ready())
            asked = asyncio.ensure_future(signals.get())
            await asyncio.wait({ready, asked}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                on_ready(operator)
            ready.cancel()
            # Nobody's endpoint list names a router at a terminal.
            delay_s = 0.0 if await asked == signal.SIGINT else config.drain_delay_s
            _LOGGER.info(
                "draining: %.0f s delay, then at most %.0f s; a second signal ends it at once",
                delay_s,
                config.drain_timeout_s,
            )
            drained = asyncio.ensure_future(operator.drain(delay_s=delay_s, timeout_s=config.drain_timeout_s))
            hurried = asyncio.ensure_future(signals.get())
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
            drained.cancel()
            hurried.cancel()
    finally:
        await operator.stop()
    return 0


async def _keep_learning(fleet: Fleet, catalog: Catalog) -> None:
    """Ask new pods for what requests will need, before the first request comes."""
    while True:
        catalog.learn(fleet.snapshot(), away=fleet.away())
        fleet.check_ready()
        await asyncio.sleep(_LEARN_INTERVAL_S)
