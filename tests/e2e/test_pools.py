"""Routers that follow EnginePools, with pods of several models: who is served by whom, who writes, with what rights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart_operator.app import Operator, start_operator
from headstart_operator.config import OperatorConfig
from operator_rig import generate, prompt, start_simulated_pod, until
from support.kube_server import LEASES, POOLS, KubeServer, engine_pool, pod

# What a Role in the namespace has to allow, and nothing beyond.
_RIGHTS = {
    ("list", "pods"),
    ("list", "enginepools"),
    ("patch", "enginepools/status"),
    ("get", "leases"),
    ("create", "leases"),
    ("update", "leases"),
    ("create", "events"),
}


@contextlib.asynccontextmanager
async def _cluster(*models: str, **overrides: Any) -> AsyncIterator[KubeServer]:
    """A pool of one pod for each model."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(KubeServer())
        for model in models:
            real = await start_simulated_pod(f"pod-{model}", model__served_name=model, **overrides)
            stack.push_async_callback(real.stop)
            server.pods.append(pod(model, ip="127.0.0.1", labels={"app": model}))
            server.put(POOLS, engine_pool(model, port=real.grpc_port, model=model))
        yield server


@contextlib.asynccontextmanager
async def _router(server: KubeServer, **config: Any) -> AsyncIterator[tuple[Operator, Any]]:
    ports = dict.fromkeys(("grpc_port", "health_port", "http_port", "metrics_port"), 0)
    operator = await start_operator(
        OperatorConfig(kube_api=server.url, namespace="ns", host="127.0.0.1", **ports, **config)
    )
    try:
        await asyncio.wait_for(operator.wait_ready(), 10)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{operator.grpc_port}") as channel:
            yield operator, rpc.InferenceStub(channel)
    finally:
        await operator.stop()


def _holder(server: KubeServer) -> str:
    item = server.find(LEASES, "headstart-operator")
    return item["spec"]["holderIdentity"] if item is not None else ""


def _status(server: KubeServer, name: str) -> Any:
    item = server.find(POOLS, name)
    return (item or {}).get("status") or {}


def _request(model: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(model=model, token_ids=prompt(1, 64), max_tokens=2, ignore_eos=True)


async def test_a_requests_model_picks_the_pool_and_an_unknown_one_is_not_found() -> None:
    async with _cluster("m1", "m2") as server, _router(server) as (_, stub):
        for model in ("m1", "m2"):
            answer = await generate(stub, _request(model))
            assert answer.finished[0].route.pod == f"pod-{model}"
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(stub, _request("m3"))
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_every_router_routes_one_of_them_writes_and_another_takes_over_when_it_leaves() -> None:
    async with _cluster("m1") as server:
        async with contextlib.AsyncExitStack() as leaving:
            _, first = await leaving.enter_async_context(_router(server))
            await until(lambda: _holder(server) != "")
            holder = _holder(server)
            await until(lambda: _status(server, "m1").get("pods") == {"total": 1, "ready": 1})
            async with _router(server) as (_, second):
                for stub in (first, second):
                    assert (await generate(stub, _request("m1"))).finished[0].route.pod == "pod-m1"
                assert _holder(server) == holder
                await leaving.aclose()
                await until(lambda: _holder(server) not in ("", holder))
                server.put(POOLS, engine_pool("m2"))
                await until(lambda: "conditions" in _status(server, "m2"))
        assert _holder(server) == "", "who leaves gives the Lease back"
        assert server.verbs() <= _RIGHTS


async def test_a_pools_limits_bound_what_waits_for_its_model() -> None:
    async with _cluster("m1", scheduler__max_num_seqs=1, runner__step_seconds=0.02) as server:
        item = server.find(POOLS, "m1")
        assert item is not None
        server.put(POOLS, engine_pool("m1", port=item["spec"]["port"], limits={"maxQueuedTokens": 63}))
        async with _router(server) as (_, stub):
            running = stub.Generate(pb.GenerateRequest(token_ids=prompt(1, 64), max_tokens=400, ignore_eos=True))
            await running.read()
            with pytest.raises(grpc.aio.AioRpcError, match="too many requests wait"):
                await generate(stub, _request("m1"))
            running.cancel()
