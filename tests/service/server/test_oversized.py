"""Requests larger than any that a pod could serve, over both of its fronts: refused by name, and the pod goes on."""

import io

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.message_sizes import ALWAYS_PARSED_BYTES
from headstart.server.server import HealthServer
from service.server.conftest import MAX_LEN, channel_to
from service.server.test_completions import web_of

BODY_BYTES = 1 << 20
NO_UTF8 = b"\xff"  # protobuf's parser refuses it in a text: what is refused otherwise was not parsed


async def test_a_message_that_no_request_needs_is_refused_unparsed_and_the_next_one_is_served(start_pod):
    pod = await start_pod()
    text = b"\x1a\x80\x80\x80\x04" + NO_UTF8 * (8 << 20)
    call = pod.channel.unary_stream("/headstart.v1.Inference/Generate")(text)
    with pytest.raises(grpc.aio.AioRpcError, match="text: more than 4624 bytes") as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await pod.generate(text="a", max_tokens=1)).code is grpc.StatusCode.OK


async def test_a_message_that_is_parsed_is_refused_by_the_checks_of_its_fields(start_pod):
    pod = await start_pod()
    ids = pb.TokenIds(ids=[1] * (ALWAYS_PARSED_BYTES - 100))
    answer = await pod.generate(token_ids=ids)
    assert f"at most {MAX_LEN - 1} fit" in answer.details


async def test_more_than_grpc_takes_in_is_still_grpcs_own_refusal(start_pod):
    pod = await start_pod()
    answer = await pod.generate(text="x" * (32 << 20))
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_port_for_probes_takes_no_more_than_a_probe(start_pod):
    server = HealthServer((await start_pod()).health, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with channel_to(server.port) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check(health_pb2.HealthCheckRequest(service="x" * (64 << 10)))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await check(health_pb2.HealthCheckRequest())).status
    finally:
        await server.stop()


async def _post(session, url, body):
    async with session.post(url, data=io.BytesIO(body)) as response:
        return response.status, (await response.json()).get("error")


async def test_a_body_is_read_up_to_its_bound_and_not_beyond(start_pod):
    async with web_of(await start_pod()) as (web, _), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{web.http_port}/v1/completions"
        body = b'{"prompt": "a", "max_tokens": 1}'
        assert (await _post(session, url, body.ljust(BODY_BYTES)))[0] == 200
        status, error = await _post(session, url, body.ljust(BODY_BYTES + 1))
        assert (status, error["param"], error["type"]) == (413, "body", "invalid_request_error")
        assert f"at most {BODY_BYTES} bytes" in error["message"]
        assert (await _post(session, url, body))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", b'{"prompt": [%s1]}' % (b"1," * 100_000), "prompt"),
        ("completions", b'{"prompt": "a", "stop": [%s1]}' % (b"1," * 100_000), "stop"),
        ("completions", b'{"prompt": "a", "user": [%s1!]}' % (b"1," * 500_000), "body"),
        ("chat/completions", b'{"messages": [%s1]}' % (b'{"role": 1},' * 20_000), "messages"),
    ],
    ids=["ids", "stops", "values", "messages"],
)
async def test_a_list_that_is_too_long_is_refused_by_openais_name(start_pod, path, body, param):
    async with web_of(await start_pod()) as (web, client), aiohttp.ClientSession() as session:
        status, error = await _post(session, f"http://127.0.0.1:{web.http_port}/v1/{path}", body)
        assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert (await client.completions.create(model="tiny", prompt="a", max_tokens=1)).choices
