"""Brings a pod up and takes it down: health first, then the model, then a self-test, then the port for requests.

Owner of a running pod's servers and engine: whoever called `start_pod` or `serve`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headstart.app.assembly import Assembly, assemble, warm_up_spec
from headstart.app.entrance import entrance_options
from headstart.app.loading import ModelLoading, Progress
from headstart.config import Settings
from headstart.edge.entrance import Entrance
from headstart.edge.listening import check_port, stop_signals
from headstart.edge.names import pod_name
from headstart.edge.prompts import PromptReader
from headstart.edge.web import Web
from headstart.engine.handle import EngineHandle
from headstart.server.completions import PodCompletions
from headstart.server.inference import InferenceServicer
from headstart.server.metrics import PodMetrics
from headstart.server.pod_health import PodHealth
from headstart.server.prefix_cache import PrefixCacheServicer
from headstart.server.recorder import RequestRecorder
from headstart.server.server import HealthServer, PodServer, PodServices, serve_until_stopped
from headstart.telemetry.requests import RequestInstruments
from headstart.telemetry.signals import Signals, open_signals
from headstart.text.chat import ChatTemplate

_LOGGER = logging.getLogger(__name__)
# For a collector to take the last spans and metrics; one that is gone must not hold up the exit.
_LAST_SIGNALS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is ready. The ports are those that were bound."""

    engine: EngineHandle
    server: PodServer
    entrance: Entrance
    health_server: HealthServer
    web: Web
    signals: Signals
    prompts: PromptReader
    num_blocks: int
    block_size: int

    @property
    def grpc_port(self) -> int:
        return self.server.port

    @property
    def health_port(self) -> int:
        return self.health_server.port

    @property
    def http_port(self) -> int:
        return self.web.http_port

    @property
    def metrics_port(self) -> int:
        return self.web.metrics_port

    async def stop(self) -> None:
        """End everything now; calls in progress end UNAVAILABLE."""
        await self.server.stop()
        await self._close_rest()

    async def serve(self, signals: asyncio.Queue[int], *, drain_delay_s: float, drain_timeout_s: float) -> bool:
        """Serve until one of `signals` or the engine's death; True after a stop that was asked for."""
        try:
            return await serve_until_stopped(
                self.server, self.engine, signals, drain_delay_s=drain_delay_s, drain_timeout_s=drain_timeout_s
            )
        finally:
            await self._close_rest()

    async def _close_rest(self) -> None:
        gc.unfreeze()  # what was to stay for ever goes now, the kernels' memory in good order too
        self.prompts.close()
        await self.web.stop()
        await self.entrance.stop()
        await self.health_server.stop()
        await asyncio.to_thread(self.signals.shutdown, timeout_s=_LAST_SIGNALS_S)


class _Fronts(NamedTuple):
    """What is up before the model is loaded."""

    entrance: Entrance
    health_server: HealthServer
    web: Web
    signals: Signals


async def start_pod(settings: Settings, *, progress: Progress, is_tracing: bool = False) -> Pod:
    """A ready pod that answers. Raises ConfigError or ModelError that say what to change."""
    pod = await _bring_up(settings, ModelLoading(settings, progress), progress, is_tracing=is_tracing)
    await pod.server.start()
    return pod


async def serve(
    settings: Settings, loading: ModelLoading, *, progress: Progress, on_ready: Callable[[Pod], None]
) -> int:
    """One pod of the model that is being read, from start to drain.

    The exit code is 0 after a stop that was asked for, 1 when the engine broke. A signal while the model loads ends it
    at once: nobody has been promised anything. The thread that loads, or a step that outlasts the drain, is then left
    behind: the caller should end the process without waiting for it.
    """
    with stop_signals() as signals:
        starting = asyncio.ensure_future(_bring_up(settings, loading, progress, is_tracing=False))
        asked = asyncio.ensure_future(signals.get())
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            _LOGGER.info("stopped while the model was loading")
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        if asked.done():
            signals.put_nowait(asked.result())  # both at once: the drain is what it asks for
        asked.cancel()
        pod = starting.result()
        on_ready(pod)
        chosen = settings.server
        is_clean = await pod.serve(signals, drain_delay_s=chosen.drain_delay_s, drain_timeout_s=chosen.drain_timeout_s)
    return 0 if is_clean else 1


async def _bring_up(settings: Settings, loading: ModelLoading, progress: Progress, *, is_tracing: bool) -> Pod:
    """Everything but opening the port for requests. Probes are answered "live, not ready" while the model loads."""
    health = PodHealth()
    entrance = Entrance(entrance_options(settings.server))
    signals = open_signals(
        service_name="headstart",
        instance_id=pod_name(os.environ, port=settings.server.grpc_port),
        otlp_endpoint=settings.telemetry.otlp_endpoint,
        has_vllm_names=settings.telemetry.vllm_metric_names,
    )
    chosen = settings.server
    for port in (chosen.grpc_port, chosen.health_port):
        check_port(chosen.host, port)
    health_server = HealthServer(health, host=chosen.host, port=chosen.health_port)
    web = Web(
        signals,
        probes=health.probes(),
        entrance=entrance,
        host=chosen.host,
        http_port=chosen.http_port,
        metrics_port=chosen.metrics_port,
    )
    await health_server.start()
    try:
        entrance.start()
        await web.start()
        assembly = assemble(settings, await loading.model(), is_tracing=is_tracing)
        health.attach(assembly.engine)
        progress("self-test", 0.0)
        await assembly.engine.start(warm_up=warm_up_spec(assembly))
        progress("self-test", 1.0)
        # What is loaded by now stays for ever: a full collection need not walk it in the middle of a step. Nor does the
        # start: the garbage among it, of classes that were made in two steps, is a third of a megabyte.
        gc.freeze()
        return _with_services(settings, assembly, health, _Fronts(entrance, health_server, web, signals))
    except BaseException:
        await web.stop()
        await entrance.stop()
        await health_server.stop()
        signals.shutdown(timeout_s=_LAST_SIGNALS_S)
        raise


def _with_services(settings: Settings, assembly: Assembly, health: PodHealth, fronts: _Fronts) -> Pod:
    tokenizer = assembly.tokenizer
    prompts = PromptReader(tokenizer, ChatTemplate.of(tokenizer) if tokenizer is not None else None)
    engine, identity, limits, signals = assembly.engine, assembly.identity, assembly.limits, fronts.signals
    completions = PodCompletions(
        engine,
        identity=identity,
        limits=limits,
        prompts=prompts,
        tokenizer=tokenizer,
        recorder=RequestRecorder(
            signals.tracer,
            RequestInstruments(signals.meter),
            model=identity.model,
            captures_content=settings.telemetry.capture_content,
        ),
    )
    services = PodServices(
        engine=engine,
        completions=completions,
        inference=InferenceServicer(
            completions,
            identity=identity,
            limits=limits,
            prompts=prompts,
            tokenizer=tokenizer,
            gate=fronts.entrance.gate,
        ),
        prefix_cache=PrefixCacheServicer(engine, identity=identity, limits=limits, hash_root=assembly.hash_root),
        tracer=signals.tracer,
        entrance=fronts.entrance,
        limits=limits,
    )
    server = PodServer(services, health, host=settings.server.host, port=settings.server.grpc_port)
    metrics = PodMetrics(signals.meter, engine, identity=identity)
    fronts.web.attach(completions, refresh=metrics.take_steps)
    return Pod(
        engine=engine,
        server=server,
        entrance=fronts.entrance,
        health_server=fronts.health_server,
        web=fronts.web,
        signals=signals,
        prompts=prompts,
        num_blocks=identity.capacity_blocks,
        block_size=identity.block_size,
    )
