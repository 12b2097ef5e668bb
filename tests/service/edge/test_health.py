import asyncio

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.edge.health import HealthServicer

SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)


class Health:
    def __init__(self):
        self.is_ready = False
        self.servicer = HealthServicer({"": lambda: True, "readiness": lambda: self.is_ready})
        self.stub = None

    async def check(self, service):
        return (await self.stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    def watch(self, service):
        return self.stub.Watch(health_pb2.HealthCheckRequest(service=service))


@pytest_asyncio.fixture
async def health():
    health = Health()
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        health.stub = health_pb2_grpc.HealthStub(channel)
        yield health
    health.servicer.close()
    await server.stop(None)


async def test_a_check_asks_its_own_probe_each_time(health):
    assert (await health.check(""), await health.check("readiness")) == (SERVING, NOT_SERVING)
    health.is_ready = True
    assert await health.check("readiness") == SERVING


async def test_an_unknown_service_is_not_found_when_checked_and_a_status_when_watched(health):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health.check("other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    call = health.watch("other")
    assert (await call.read()).status == UNKNOWN
    call.cancel()


async def test_a_watch_tells_changes_and_only_changes(health):
    call = health.watch("readiness")
    assert (await call.read()).status == NOT_SERVING
    health.is_ready = True
    assert (await asyncio.wait_for(call.read(), 5)).status == SERVING
    health.servicer.close()
    assert await asyncio.wait_for(call.read(), 5) is grpc.aio.EOF


async def test_a_list_has_every_name_with_its_status(health):
    listed = (await health.stub.List(health_pb2.HealthListRequest())).statuses
    assert {name: answer.status for name, answer in listed.items()} == {"": SERVING, "readiness": NOT_SERVING}
