"""Requests larger than any pod could serve are the router's to refuse, at both of its doors."""

from __future__ import annotations

import contextlib
import io

import aiohttp
import grpc
import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.openai_sizes import max_body_bytes
from headstart_operator.app import start_operator
from headstart_operator.config import OperatorConfig
from operator_rig import generate, prompt, rig

NO_UTF8 = b"\xff"  # protobuf's parser refuses it in a text: what is refused otherwise was not parsed


async def test_a_message_that_no_pod_could_serve_is_refused_by_every_call_that_takes_one() -> None:
    fields = {"Inference/Generate": b"\x1a", "Inference/Tokenize": b"\x12", "Router/Explain": b"\x1a"}
    async with rig(1) as r:
        await generate(r.stub, pb.GenerateRequest(token_ids=prompt(1, 8), max_tokens=1))
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{r.operator.grpc_port}", options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            for method, tag in fields.items():
                text = tag + b"\x80\x80\x80\x04" + NO_UTF8 * (8 << 20)
                with pytest.raises(grpc.aio.AioRpcError, match="text: more than") as refused:
                    await channel.unary_stream(f"/headstart.v1.{method}")(text).read()
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        answer = await generate(r.stub, pb.GenerateRequest(token_ids=prompt(1, 8), max_tokens=1))
        assert answer.finished


async def test_a_body_may_have_what_a_prompt_for_the_pods_may_need() -> None:
    async with rig(1) as r, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{r.operator.web.http_port}/v1/completions"
        body = b'{"prompt": [1, 2, 3], "max_tokens": 1}'
        bound = max_body_bytes(await r.operator.proxy.limits())
        for size, status in ((len(body), 200), (bound, 200), (bound + 1, 413), (len(body), 200)):
            async with session.post(url, data=io.BytesIO(body.ljust(size))) as response:
                assert response.status == status
                if status == 413:
                    assert f"at most {bound} bytes" in (await response.json())["error"]["message"]


async def test_a_prompt_longer_than_every_pods_context_is_refused_by_name() -> None:
    async with rig(1) as r, aiohttp.ClientSession() as session:
        max_len = (await r.operator.proxy.limits()).max_len
        body = {"prompt": [1] * max_len}
        async with session.post(f"http://127.0.0.1:{r.operator.web.http_port}/v1/completions", json=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "prompt"


async def test_without_pods_a_body_is_not_looked_at() -> None:
    ports = dict.fromkeys(("grpc_port", "health_port", "http_port", "metrics_port"), 0)
    operator = await start_operator(OperatorConfig(endpoints=("127.0.0.1:1",), host="127.0.0.1", **ports))
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{operator.web.http_port}/v1/completions"
            async with session.post(url, data=b"no JSON") as response:
                assert response.status == 503
    finally:
        await operator.stop()


async def test_metadata_that_the_router_takes_its_pods_take_too_and_more_is_always_refused() -> None:
    request = pb.GenerateRequest(token_ids=prompt(1, 8), max_tokens=1)
    async with rig(1) as r:
        for size, code in ((9_000, "OK"), (15_700, "OK"), (16_400, "RESOURCE_EXHAUSTED")):
            for _ in range(8):  # between gRPC's own two bounds chance decides
                call = r.stub.Generate(request, metadata=(("x-big", "a" * size),))
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert [message async for message in call]
                assert (await call.code()).name == code, await call.details()
