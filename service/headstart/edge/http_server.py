"""One aiohttp application on one port, and the routes that every process has: probes and metrics.

Knows nothing of requests for text. Owner of its state: whoever started it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from headstart.edge.health import Probe
from headstart.edge.http_answers import AnsweringRunner, Refusal
from headstart.edge.listening import check_port
from headstart.edge.tls import ServerTls
from headstart.errors import ConfigError

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# What runs at a stop has been told to end before; this is for answers that nobody reads.
_LAST_WORDS_S = 1.0


def _always() -> bool:
    return True


class HttpServer:
    """`port` is the one that was bound, for a wish of 0, once it has started.

    Bodies are not unpacked. With `refuse` no refusal has a form but the one that it gives. While it is not ready every
    answer tells its client to come back on another connection, which may lead elsewhere.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        refuse: Refusal | None = None,
        is_ready: Probe = _always,
    ) -> None:
        self._host = host
        self._context = tls.http_context() if tls is not None else None
        self.port = port
        self._is_ready = is_ready
        app.on_response_prepare.append(self._part)
        options: dict[str, Any] = {
            "handler_cancellation": True,  # a client that leaves cancels its handler, and so its request
            "access_log": None,
            "shutdown_timeout": _LAST_WORDS_S,
            "auto_decompress": False,  # it would unpack without an end
        }
        self._runner = web.AppRunner(app, **options) if refuse is None else AnsweringRunner(app, refuse, **options)

    async def start(self) -> None:
        """Raises ConfigError when the address is taken or is none."""
        check_port(self._host, self.port)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, self._host, self.port, reuse_port=False, ssl_context=self._context)
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise ConfigError(
                f"cannot listen on {self._host}:{self.port}: the port is taken or the address is not this machine's"
            ) from None
        self.port = self._runner.addresses[0][1]

    @property
    def num_connections(self) -> int:
        server = self._runner.server
        return 0 if server is None else len(server.connections)

    async def refuse(self) -> None:
        """Take no more connections, and let go of those that wait for a request. What runs goes on."""
        for site in list(self._runner.sites):
            await site.stop()
        if self._runner.server is not None:
            self._runner.server.pre_shutdown()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _part(self, _: web.Request, response: web.StreamResponse) -> None:
        if not self._is_ready():
            response.force_close()
            response.headers["Connection"] = "close"


def add_probes(app: web.Application, *, is_live: Probe, is_ready: Probe) -> None:
    """`/healthz` and `/readyz`: 200 or 503."""
    app.router.add_get("/healthz", _probe(is_live))
    app.router.add_get("/readyz", _probe(is_ready))


def add_metrics(app: web.Application, exposition: Callable[[], Awaitable[bytes]]) -> None:
    """`/metrics`, in Prometheus' text format."""

    async def metrics(request: web.Request) -> web.Response:  # noqa: ARG001  the signature is aiohttp's
        body = await exposition()
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    app.router.add_get("/metrics", metrics)


def _probe(probe: Probe) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:  # noqa: ARG001  the signature is aiohttp's
        is_good = probe()
        return web.Response(status=200 if is_good else 503, text="ok\n" if is_good else "not now\n")

    return answer
