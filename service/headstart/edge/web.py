"""A process's HTTP: OpenAI's interface with probes and metrics on one port, metrics alone on another.

Up before there is anything to serve, so that probes are answered; requests are served once `attach` was called. Owner
of the two servers: whoever started them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

from headstart.edge.access import guard
from headstart.edge.completions import Completions
from headstart.edge.entrance import Entrance
from headstart.edge.health import Probe
from headstart.edge.http_server import HttpServer, add_metrics, add_probes
from headstart.edge.openai_http import OpenAiFront, refuse
from headstart.telemetry.signals import Signals

_REFRESH_S = 1.0


class Web:
    """`http_port` and `metrics_port` are those that were bound, once it has started.

    `probes` are those of gRPC's health. The entrance is `http_port`'s: metrics alone are plain and open, for scrapers.
    """

    def __init__(
        self,
        signals: Signals,
        *,
        probes: Mapping[str, Probe],
        entrance: Entrance,
        host: str,
        http_port: int,
        metrics_port: int,
    ) -> None:
        self._signals = signals
        self._front = OpenAiFront(signals.tracer)
        self._refresh: Callable[[], None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        served = self._front.application()
        if entrance.gate is not None:
            served.middlewares.append(guard(entrance.gate))
        add_probes(served, is_live=probes["liveness"], is_ready=probes["readiness"])
        scraped = web.Application()
        for app in (served, scraped):
            add_metrics(app, self._exposition)
        self._http = HttpServer(
            served, host=host, port=http_port, tls=entrance.tls, refuse=refuse, is_ready=probes["readiness"]
        )
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

    def attach(self, completions: Completions, *, refresh: Callable[[], None] | None = None) -> None:
        """There is something to serve. `refresh` brings metrics up to date: before each scrape, and every second.

        It runs on the event loop, so it may read what lives there; a collection itself runs in another thread.
        """
        self._front.attach(completions)
        if refresh is not None:
            self._refresh = refresh
            self._refreshing = asyncio.create_task(_keep_refreshing(refresh))

    async def refuse(self) -> None:
        """Take no more requests; those that run go on. Metrics and their port stay."""
        await self._http.refuse()

    @property
    def num_connections(self) -> int:
        """Clients of requests that hold a connection, the one of a metrics scraper not among them."""
        return self._http.num_connections

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._http.stop()
        await self._scraped.stop()

    async def _exposition(self) -> bytes:
        if self._refresh is not None:
            self._refresh()
        # Takes milliseconds: not on the event loop.
        return await asyncio.to_thread(self._signals.exposition)


async def _keep_refreshing(refresh: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        refresh()
