"""A whole pod in this process, without weights: how it comes up, what it says of itself, how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.app.assembly import assemble
from headstart.app.loading import ModelLoading
from headstart.app.model import open_model
from headstart.app.pod import Pod, serve, start_pod
from headstart.config import load_settings
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.contract.proto import prefix_cache_pb2_grpc as cache_rpc
from headstart.errors import ConfigError

SIMULATED = {
    "runner.kind": "simulated",
    "runner.step_seconds": 0,
    "runner.token_seconds": 0,
    "cache.num_blocks": 49,
    "server.host": "127.0.0.1",
    "server.grpc_port": 0,
    "server.health_port": 0,
    "server.http_port": 0,
    "server.metrics_port": 0,
}


def _silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


@asynccontextmanager
async def _pod(**overrides: Any) -> AsyncIterator[tuple[Pod, grpc.aio.Channel]]:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    pod = await start_pod(load_settings(SIMULATED | keys), progress=_silent)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{pod.grpc_port}") as channel:
            yield pod, channel
    finally:
        await pod.stop()


async def _generate(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> tuple[list[int], pb.Finished]:
    token_ids: list[int] = []
    finished = pb.Finished()
    async for response in rpc.InferenceStub(channel).Generate(request, timeout=20):
        if response.HasField("finished"):
            finished = response.finished
        else:
            token_ids += response.chunk.token_ids
    return token_ids, finished


def _request(num_prompt: int, max_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(100, 100 + num_prompt)), max_tokens=max_tokens)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _health(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True)
    return int(response.status)


async def test_the_second_of_two_equal_prompts_is_a_hit_and_gives_the_same_tokens() -> None:
    async with _pod() as (_, channel):
        cold_ids, cold = await _generate(channel, _request(40, 8))
        warm_ids, warm = await _generate(channel, _request(40, 8))
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 32)
    assert len(cold_ids) == 8
    assert cold_ids == warm_ids


async def test_a_pod_that_drains_tells_http_clients_to_come_back_on_another_connection() -> None:
    async with _pod() as (pod, _), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{pod.http_port}/v1/models"
        async with session.get(url) as before:
            assert (before.status, before.headers.get("Connection")) == (200, None)
        draining = asyncio.create_task(pod.server.drain(delay_s=60, timeout_s=1))
        await asyncio.sleep(0)
        async with session.get(url) as during:
            assert (during.status, during.headers["Connection"]) == (200, "close")
        draining.cancel()


async def test_the_self_test_leaves_nothing_behind() -> None:
    async with _pod() as (pod, channel):
        state = await cache_rpc.PrefixCacheStub(channel).GetState(cache_pb.GetStateRequest())
        assert (state.queried_tokens, state.cached_blocks, state.free_blocks) == (0, 0, 49)
        assert pod.engine.mirror.digest.num_hashes == 0


async def test_a_pod_that_stopped_keeps_nothing_from_the_collector() -> None:
    async with _pod():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


async def test_a_pod_lives_while_it_loads_and_is_ready_only_after_its_self_test() -> None:
    """B126. The progress hook holds the loading back, as slow weights would."""
    stages: list[str] = []
    go_on = threading.Event()

    def hold(stage: str, fraction: float) -> None:
        stages.append(stage)
        if stage == "find the model":
            go_on.wait(20)

    port = _free_port()
    starting = asyncio.create_task(start_pod(load_settings(SIMULATED | {"server.health_port": port}), progress=hold))
    try:
        assert await _health(port, "liveness") == health_pb2.HealthCheckResponse.SERVING
        for service in ("readiness", "startup", ""):
            assert await _health(port, service) == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        go_on.set()
        pod = await starting
    try:
        assert stages[-1] == "self-test"
        for service in ("liveness", "readiness", "startup", ""):
            assert await _health(port, service) == health_pb2.HealthCheckResponse.SERVING
            assert await _health(pod.grpc_port, service) == health_pb2.HealthCheckResponse.SERVING
    finally:
        await pod.stop()


async def test_a_signal_while_the_model_loads_ends_the_start_at_once() -> None:
    is_loading, go_on = threading.Event(), threading.Event()

    def hold(stage: str, fraction: float) -> None:
        is_loading.set()
        go_on.wait(30)

    started: list[Pod] = []
    settings = load_settings(SIMULATED | {"server.health_port": (port := _free_port())})
    serving = asyncio.create_task(serve(settings, ModelLoading(settings, hold), progress=hold, on_ready=started.append))
    try:
        assert await _health(port, "liveness") == health_pb2.HealthCheckResponse.SERVING
        await asyncio.to_thread(is_loading.wait, 10)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(serving, 10) == 0
    finally:
        go_on.set()
    assert started == []


async def test_a_port_that_is_taken_is_told_before_the_model_is_loaded() -> None:
    go_on = threading.Event()
    async with _pod() as (pod, _):
        try:
            with pytest.raises(ConfigError, match="cannot listen on"):
                await start_pod(
                    load_settings(SIMULATED | {"server.grpc_port": pod.grpc_port}),
                    progress=lambda *_: go_on.wait(30),
                )
            assert not go_on.is_set()
        finally:
            go_on.set()


async def test_requests_are_capped_to_the_pool_and_end_with_length(caplog: pytest.LogCaptureFixture) -> None:
    """B030: a 700-token prompt with 300 tokens to come, on a pool of 784."""
    with caplog.at_level(logging.WARNING, "headstart"):
        async with _pod() as (_, channel):
            model = await rpc.InferenceStub(channel).GetModel(pb.GetModelRequest())
            request = _request(700, 300)
            request.ignore_eos = True
            token_ids, finished = await _generate(channel, request)
    assert model.context_length == 784
    assert "requests are limited to 784 tokens" in caplog.text
    assert len(token_ids) == 84
    assert finished.finish_reason == pb.FINISH_REASON_LENGTH


async def test_what_is_in_effect_is_said_once_and_told_to_clients(caplog: pytest.LogCaptureFixture) -> None:
    """B025."""
    with caplog.at_level(logging.INFO, "headstart"):
        async with _pod(cache__enable_prefix_caching=False) as (_, channel):
            model = await rpc.InferenceStub(channel).GetModel(pb.GetModelRequest())
            await _generate(channel, _request(40, 1))
            _, again = await _generate(channel, _request(40, 1))
    assert model.features["prefix_caching"] == "off"
    assert model.features["tools"] == "off"  # the built-in template does not read them
    assert model.features["long_prefill_token_threshold"] == "128"
    assert caplog.text.count("KV blocks of 16 tokens") == 1
    assert "prefix caching is off" in caplog.text
    assert again.usage.cached_tokens == 0


async def test_pods_of_one_fleet_secret_share_a_hash_root_and_others_do_not() -> None:
    digests = []
    for seed in ("one", "one", "two"):
        async with _pod(cache__hash_seed=seed) as (_, channel):
            digests.append((await rpc.InferenceStub(channel).GetModel(pb.GetModelRequest())).hash_root_digest)
    assert digests[0] == digests[1] != digests[2]


def test_the_hash_root_covers_the_block_size() -> None:
    def root(block_size: int) -> bytes:
        settings = load_settings(SIMULATED | {"cache.block_size": block_size})
        return assemble(settings, open_model(settings, _silent)).hash_root

    assert root(16) != root(32)


async def test_a_taken_port_is_said_in_words_and_leaves_nothing_running() -> None:
    async with _pod() as (pod, _):
        with pytest.raises(ConfigError, match="cannot listen on"):
            await start_pod(load_settings(SIMULATED | {"server.grpc_port": pod.grpc_port}), progress=_silent)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_told_before_any_weight_is_read() -> None:
    stages: list[str] = []
    with pytest.raises(ConfigError, match=r"^device: cuda cannot be used, because .*; choose --device cpu$"):
        open_model(load_settings({"device": "cuda"}), lambda stage, _: stages.append(stage))
    assert "weights" not in " ".join(stages)


def test_pods_of_one_host_that_have_no_names_are_told_apart_by_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_NAME", raising=False)
    model = open_model(load_settings(SIMULATED), _silent)
    settings = (load_settings(SIMULATED | {"server.grpc_port": port}) for port in (50061, 50071))
    names = [assemble(each, model).identity.pod_name for each in settings]
    assert names == [f"{socket.gethostname()}:{port}" for port in (50061, 50071)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"speculation.num_drafts": 2}, "the simulated runner makes no drafts"),
        ({"model.max_len": 785}, "the largest that fits is 784"),
        ({"cache.num_blocks": 1, "cache.block_size": 1}, "less than 2 tokens"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_at_the_start(
    overrides: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        open_model(load_settings(SIMULATED | overrides), _silent)
