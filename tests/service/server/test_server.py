import asyncio
import os
import signal

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.edge.listening import stop_signals
from headstart.errors import ConfigError
from headstart.server.pod_health import PodHealth
from headstart.server.server import HealthServer, PodServer, serve_until_stopped
from service.server.conftest import channel_to, read, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def check(port, service):
    async with channel_to(port) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_reflection_lists_the_services_and_describes_them(start_pod):
    pod = await start_pod()

    def ask():
        with grpc.insecure_channel(f"127.0.0.1:{pod.server.port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            methods = DescriptorPool(database).FindServiceByName("headstart.v1.Inference").methods_by_name
            return set(database.get_services()), set(methods)

    services, methods = await asyncio.to_thread(ask)
    assert {"headstart.v1.Inference", "headstart.v1.PrefixCache", "grpc.health.v1.Health"} <= services
    assert methods == {"Generate", "Tokenize", "GetTokenizer", "GetModel"}


async def test_health_is_true_on_a_port_of_its_own_before_and_after_the_engine_is_there(start_pod):
    health = PodHealth()
    server = HealthServer(health, host="127.0.0.1", port=0)
    await server.start()
    names = ("liveness", "readiness", "startup", "")
    assert [await check(server.port, name) for name in names] == [SERVING, NOT_SERVING, NOT_SERVING, NOT_SERVING]
    pod = await start_pod()
    health.attach(pod.engine)
    assert {await check(server.port, name) for name in names} == {SERVING}
    assert {await check(pod.server.port, name) for name in names} == {SERVING}
    await pod.engine.close()
    assert await check(server.port, "liveness") == NOT_SERVING
    await server.stop()


async def test_a_port_that_is_taken_is_a_setting_that_cannot_work(start_pod):
    pod = await start_pod()
    with pytest.raises(ConfigError, match=str(pod.server.port)):
        PodServer(pod.services, pod.health, host="127.0.0.1", port=pod.server.port)


def serve(pod, *, delay_s=0.0, timeout_s=30.0):
    """A second server around the pod's services, that takes signals."""
    server = PodServer(pod.services, pod.health, host="127.0.0.1", port=0)

    async def run():
        with stop_signals() as signals:
            return await serve_until_stopped(
                server, pod.engine, signals, drain_delay_s=delay_s, drain_timeout_s=timeout_s
            )

    return server, asyncio.ensure_future(run())


def send_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


async def serving(server):
    await asyncio.sleep(0)
    assert await check(server.port, "") == SERVING


async def test_a_signal_lets_running_requests_finish_and_refuses_new_ones(start_pod):
    pod = await start_pod()
    server, served = serve(pod)
    await serving(server)
    pod.runner.hold()
    call = pod.call(max_tokens=8)
    await until(lambda: pod.engine.num_in_flight == 1)
    send_sigterm()
    await until(lambda: pod.engine.is_draining)
    assert await check(server.port, "readiness") == NOT_SERVING
    assert await check(server.port, "liveness") == SERVING
    refused = await pod.generate()
    assert refused.code is grpc.StatusCode.UNAVAILABLE
    assert "grpc-retry-pushback-ms" in refused.trailers
    pod.runner.free()
    answer = await read(call)
    assert (answer.code, answer.reason()) == (grpc.StatusCode.OK, "length")
    assert await asyncio.wait_for(served, 10) is True


async def test_during_the_delay_requests_are_served_though_the_pod_says_that_it_leaves(start_pod):
    pod = await start_pod()
    server, served = serve(pod, delay_s=60.0)
    await serving(server)
    watch = pod.prefix_cache.Watch(cache_pb.WatchRequest())
    send_sigterm()
    while not (await asyncio.wait_for(watch.read(), 5)).load.draining:
        pass
    assert await check(server.port, "readiness") == NOT_SERVING
    assert (await pod.generate()).code is grpc.StatusCode.OK
    send_sigterm()
    assert await asyncio.wait_for(served, 10) is True


async def test_at_a_terminal_the_delay_for_routers_is_left_out(start_pod):
    pod = await start_pod()
    server, served = serve(pod, delay_s=3600.0)
    await serving(server)
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(served, 20) is True


async def test_a_step_that_does_not_end_holds_up_neither_the_exit_nor_the_last_message(start_pod):
    pod = await start_pod()
    server, served = serve(pod, timeout_s=0.1)
    await serving(server)
    pod.runner.hold()
    call = pod.call(max_tokens=400)
    await until(lambda: pod.engine.num_in_flight == 1)
    pod.runner.let(5)
    await until(lambda: pod.runner.num_steps == 5)
    reading = asyncio.ensure_future(read(call))
    send_sigterm()
    assert await asyncio.wait_for(served, 20) is True
    assert pod.engine.is_alive  # still in its step, and still held
    answer = await asyncio.wait_for(reading, 10)
    assert (answer.code, answer.reason()) == (grpc.StatusCode.UNAVAILABLE, "cancelled")
    assert answer.finished().usage.completion_tokens == len(answer.token_ids()) > 0
    pod.runner.free()
    await until(lambda: not pod.engine.is_alive)


@pytest.mark.parametrize("second_signal", [False, True])
async def test_a_drain_has_an_end_with_partial_usage_also_beside_a_client_that_does_not_read(start_pod, second_signal):
    pod = await start_pod()
    server, served = serve(pod, timeout_s=60.0 if second_signal else 0.3)
    await serving(server)
    pod.runner.hold()
    call, deaf = pod.call(max_tokens=400), pod.call(text="b", max_tokens=400, logprobs=20)
    await until(lambda: pod.engine.num_in_flight == 2)
    pod.runner.let(5)
    await until(lambda: pod.runner.num_steps == 5)
    send_sigterm()
    await until(lambda: pod.engine.is_draining)
    reading = asyncio.ensure_future(read(call))
    if second_signal:
        send_sigterm()
    await until(lambda: pod.services.completions._is_stopping)
    pod.runner.free()
    assert await asyncio.wait_for(served, 10) is True
    answer = await asyncio.wait_for(reading, 10)
    assert (answer.code, answer.reason()) == (grpc.StatusCode.UNAVAILABLE, "cancelled")
    assert answer.finished().usage.completion_tokens == len(answer.token_ids()) > 0
    assert not pod.engine.is_alive
    deaf.cancel()


async def test_a_dead_engine_ends_the_serving_with_false(start_pod):
    pod = await start_pod()
    server, served = serve(pod)
    await serving(server)

    def broken(*_):
        raise RuntimeError("an invariant is broken")

    pod.scheduler.commit = broken
    answer = await pod.generate()
    assert answer.code is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(served, 10) is False


async def test_idle_clients_may_ping_as_often_as_is_stated_and_no_oftener(start_pod, monkeypatch):
    strict = await start_pod()
    monkeypatch.setattr("headstart.edge.listening.MIN_PING_INTERVAL_S", 0.5)
    lenient = await start_pod()
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{pod.server.port}", options=options) for pod in (strict, lenient)]
    for channel in channels:
        await channel.channel_ready()
    await asyncio.sleep(5)  # the third ping that comes too early ends the connection
    ready = grpc.ChannelConnectivity.READY
    assert [channel.get_state() is ready for channel in channels] == [False, True]
    for channel in channels:
        await channel.close()
