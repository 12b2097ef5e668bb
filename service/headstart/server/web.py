"""A pod's HTTP: OpenAI's interface with probes and metrics on one port, metrics alone on another.

Up before the model is loaded, so that probes are answered; requests are served once `attach` was called. Owner of the
two servers: whoever started them.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from headstart.edge.http_server import HttpServer, add_metrics, add_probes
from headstart.edge.openai_http import OpenAiFront
from headstart.server.completions import PodCompletions
from headstart.server.metrics import PodMetrics
from headstart.server.pod_health import PodHealth
from headstart.telemetry.signals import Signals

# Often enough that the engine's buffer of step times never fills up.
_TAKE_STEPS_S = 1.0


class PodWeb:
    """`http_port` and `metrics_port` are those that were bound, once it has started."""

    def __init__(self, health: PodHealth, signals: Signals, *, host: str, http_port: int, metrics_port: int) -> None:
        self._signals = signals
        self._front = OpenAiFront(signals.tracer)
        self._metrics: PodMetrics | None = None
        self._ticking: asyncio.Task[None] | None = None
        served = self._front.application()
        add_probes(served, is_live=health.is_live, is_ready=health.is_ready)
        scraped = web.Application()
        for app in (served, scraped):
            add_metrics(app, self._exposition)
        self._http = HttpServer(served, host=host, port=http_port)
        self._scraped = HttpServer(scraped, host=host, port=metrics_port)

    @property
    def http_port(self) -> int:
        return self._http.port

    @property
    def metrics_port(self) -> int:
        return self._scraped.port

    async def start(self) -> None:
        """Raises ConfigError when a port is taken."""
        await self._http.start()
        try:
            await self._scraped.start()
        except BaseException:
            await self._http.stop()
            raise

    def attach(self, completions: PodCompletions, metrics: PodMetrics) -> None:
        """There is an engine now."""
        self._front.attach(completions)
        self._metrics = metrics
        self._ticking = asyncio.create_task(self._tick(metrics))

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        await self._http.stop()
        await self._scraped.stop()

    def _exposition(self) -> bytes:
        if self._metrics is not None:
            self._metrics.take_steps()
        return self._signals.exposition()

    async def _tick(self, metrics: PodMetrics) -> None:
        while True:
            await asyncio.sleep(_TAKE_STEPS_S)
            metrics.take_steps()
