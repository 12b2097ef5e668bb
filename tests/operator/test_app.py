"""An operator as a whole: what it needs to start, when it is ready, how it leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.config import load_settings
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.errors import ConfigError
from headstart_operator.app import Operator, serve, start_operator
from headstart_operator.config import OperatorConfig, parse_endpoints
from operator_rig import Answer, generate, prompt, rig, start_simulated_pod, until
from support.kube_server import KubeServer
from support.service_port import service_port


def test_endpoints_are_read_in_order_and_once() -> None:
    assert parse_endpoints("a:1, b:2,a:1,") == ("a:1", "b:2")
    assert parse_endpoints("[::1]:5") == ("[::1]:5",)


@pytest.mark.parametrize("text", ["pod", "pod:", ":5", "pod:0", "pod:x", "pod:70000"])
def test_an_endpoint_without_a_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"operator\.endpoints"):
        parse_endpoints(text)


def test_the_command_line_maps_every_setting_of_the_operator() -> None:
    from headstart.cli.route import operator_config

    settings = load_settings(
        {"operator.endpoints": "a:1", "operator.policy": "round-robin", "operator.max_queued_requests": 7}
    )
    config = operator_config(settings)
    assert (config.endpoints, config.policy.value, config.queue_limits.max_requests) == (("a:1",), "round-robin", 7)
    assert config.grpc_port == 50051


@pytest.fixture
async def pod() -> AsyncIterator[str]:
    """The address of one that runs: without it an operator takes its time to be ready."""
    started = await start_simulated_pod("pod")
    yield f"127.0.0.1:{started.grpc_port}"
    await started.stop()


def _config(**changes: Any) -> OperatorConfig:
    """By default of an operator whose one pod does not answer; on ports of its own."""
    ports = dict.fromkeys(("grpc_port", "health_port", "http_port", "metrics_port"), 0)
    return OperatorConfig(**{"endpoints": ("127.0.0.1:1",), "host": "127.0.0.1", **ports, **changes})


@pytest.mark.parametrize("port", ["grpc_port", "health_port", "http_port", "metrics_port"])
async def test_a_taken_port_is_said_in_our_words_alone(port: str, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^cannot listen on 127.0.0.1:{taken}: .* in use; choose another port$"):
            await start_operator(_config(**{port: taken}))
    assert capfd.readouterr().err == ""


async def test_ctrl_c_ends_it_without_the_delay(pod: str) -> None:
    def interrupt(_: Operator) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert await asyncio.wait_for(serve(_config(endpoints=(pod,), drain_delay_s=3600), on_ready=interrupt), 30) == 0


async def test_sigterm_keeps_the_delay_until_a_second_signal(pod: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headstart_operator")

    def end(_: Operator) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    leaving = asyncio.ensure_future(serve(_config(endpoints=(pod,), drain_delay_s=3600), on_ready=end))
    await until(lambda: "draining: 3600 s delay" in caplog.text, 30)
    assert not leaving.done()
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(leaving, 30) == 0


async def test_without_pods_it_is_ready_in_the_end_and_refuses_at_once() -> None:
    operator = await start_operator(_config())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{operator.grpc_port}") as channel:
            stub = rpc.InferenceStub(channel)
            request = pb.GenerateRequest(token_ids=prompt(1, 8), max_tokens=1)
            with pytest.raises(grpc.aio.AioRpcError, match="does not know its pods yet"):
                await generate(stub, request, timeout=5)
            await asyncio.wait_for(operator.wait_ready(), 15)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await generate(stub, request, timeout=5)
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await operator.stop()


async def test_a_drain_shows_at_once_and_lets_requests_finish() -> None:
    async with rig(1, runner__step_seconds=0.02) as r:
        health = health_pb2_grpc.HealthStub(r.channel)
        ready = health_pb2.HealthCheckRequest(service="readiness")
        serving = health_pb2.HealthCheckResponse.SERVING
        assert (await health.Check(ready)).status == serving
        request = pb.GenerateRequest(token_ids=prompt(1, 32), max_tokens=60)
        running = asyncio.create_task(generate(r.stub, request))
        await until(lambda: r.operator.balancer.num_running)
        draining = asyncio.create_task(r.operator.drain(delay_s=0.5, timeout_s=20))
        await asyncio.sleep(0)
        assert (await health.Check(ready)).status != serving
        assert (await health.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == serving
        assert len((await running).token_ids[0]) == 60
        await draining


async def test_clients_of_a_service_notice_nothing_when_one_of_its_routers_leaves(pod: str) -> None:
    leaving, staying = [await start_operator(_config(endpoints=(pod,), drain_delay_s=2.0)) for _ in range(2)]
    try:
        for operator in (leaving, staying):
            await asyncio.wait_for(operator.wait_ready(), 15)
        async with service_port((leaving, staying)) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = rpc.InferenceStub(channel)
            is_over = asyncio.Event()

            async def keep_asking(number: int) -> int:
                count = 0
                while not is_over.is_set() or count == 0:
                    answer = await generate(stub, pb.GenerateRequest(token_ids=prompt(number, 16), max_tokens=3))
                    assert len(answer.token_ids[0]) == 3
                    count += 1
                return count

            clients = [asyncio.create_task(keep_asking(number)) for number in range(4)]
            await until(lambda: leaving.balancer.num_running)
            await leaving.drain(delay_s=2.0, timeout_s=10)
            assert leaving.balancer.num_running == 0
            await leaving.stop()
            await until(lambda: staying.balancer.num_running)
            is_over.set()
            assert min(await asyncio.gather(*clients)) > 0
    finally:
        await asyncio.gather(leaving.stop(), staying.stop(), return_exceptions=True)


async def test_a_router_that_leaves_lets_go_of_its_http_connections(pod: str) -> None:
    operator = await start_operator(_config(endpoints=(pod,)))
    url = f"http://127.0.0.1:{operator.web.http_port}/v1/models"
    try:
        await asyncio.wait_for(operator.wait_ready(), 15)
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as before:
                assert (before.status, before.headers.get("Connection")) == (200, None)
            draining = asyncio.create_task(operator.drain(delay_s=1, timeout_s=1))
            await asyncio.sleep(0)
            async with session.get(url) as during:
                assert (during.status, during.headers["Connection"]) == (200, "close")
            await draining
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url)
    finally:
        await operator.stop()


async def test_a_drain_lets_another_router_write_from_its_beginning_on() -> None:
    async with KubeServer() as server:
        operator = await start_operator(_config(endpoints=(), kube_api=server.url, namespace="ns", lease="l"))

        def holder() -> str | None:
            lease = server.find("/apis/coordination.k8s.io/v1/namespaces/ns/leases", "l")
            return None if lease is None else lease["spec"]["holderIdentity"]

        try:
            await until(holder)
            draining = asyncio.create_task(operator.drain(delay_s=3600, timeout_s=0))
            await until(lambda: holder() == "")
            draining.cancel()
        finally:
            await operator.stop()
        assert holder() == ""


async def test_what_still_runs_when_it_stops_gets_its_ends_and_then_the_status() -> None:
    async with rig(1, runner__step_seconds=0.02) as r:
        call = r.stub.Generate(pb.GenerateRequest(token_ids=prompt(1, 32), max_tokens=2000, n=2), timeout=30)
        answer = Answer()
        while len(answer.token_ids) < 2:
            answer.take(await call.read())
        stopping = asyncio.create_task(r.operator.stop())
        with pytest.raises(grpc.aio.AioRpcError, match="the operator is stopping") as failure:
            await answer.read(call)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert {index: each.finish_reason for index, each in answer.finished.items()} == dict.fromkeys(
            (0, 1), pb.FINISH_REASON_CANCELLED
        )
        await stopping
