"""A pod that asks for keys: every door is watched, tenants find nothing of each other's, keys change while it runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.app.entrance import entrance_options
from headstart.app.pod import Pod
from headstart.config import load_settings
from headstart.contract.prefix import tenant_salt
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.contract.proto import prefix_cache_pb2_grpc as cache_rpc
from headstart.edge import entrance
from headstart.edge.access import Gate
from headstart.errors import ConfigError, UnauthenticatedError
from operator_rig import Answer, generate, prompt, start_simulated_pod, until
from support.certificates import Authority
from support.doors import KEYS, Metadata, bearer, http_statuses, rpc_statuses, write_keys

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
PROMPT = prompt(3, 80)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write_keys(tmp_path / "keys")


@asynccontextmanager
async def _pod(keys_dir: str, **overrides: Any) -> AsyncIterator[tuple[Pod, grpc.aio.Channel]]:
    pod = await start_simulated_pod("pod", server__auth__keys_dir=keys_dir, **overrides)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{pod.grpc_port}") as channel:
            yield pod, channel
    finally:
        await pod.stop()


async def _ask(channel: grpc.aio.Channel, tenant: str, salt: str = "") -> Answer:
    request = pb.GenerateRequest(token_ids=PROMPT, max_tokens=4, ignore_eos=True, cache_salt=salt)
    return await generate(rpc.InferenceStub(channel), request, metadata=bearer(tenant))


async def _cached(channel: grpc.aio.Channel, tenant: str, salt: str = "") -> int:
    return (await _ask(channel, tenant, salt)).finished[0].usage.cached_tokens


async def test_no_method_but_health_answers_without_a_key_or_with_a_wrong_one(keys: str) -> None:
    """B151. The methods are those that the server itself names, so a new one cannot be forgotten."""
    async with _pod(keys) as (pod, _):
        wrong = [(), (("authorization", "Bearer no-such-key-0123456789"),), (("authorization", KEYS["t1"]),)]
        for metadata in [*wrong, bearer("t1") + bearer("t1")]:
            statuses = await rpc_statuses(pod.grpc_port, metadata)
            assert {"Inference/Generate", "PrefixCache/Watch", "ServerReflection/ServerReflectionInfo"} < set(statuses)
            health = {name for name in statuses if name.startswith("Health/")}
            assert {statuses[name] for name in health} == {grpc.StatusCode.OK}
            assert {statuses[name] for name in statuses.keys() - health} == {UNAUTHENTICATED}


async def test_only_admins_may_look_into_the_cache(keys: str) -> None:
    async with _pod(keys) as (pod, _):
        statuses = await rpc_statuses(pod.grpc_port, bearer("t1"))
        denied = {name for name, status in statuses.items() if status is DENIED}
        assert denied == {name for name in statuses if name.startswith("PrefixCache/")}
        assert UNAUTHENTICATED not in statuses.values()
        assert DENIED not in (await rpc_statuses(pod.grpc_port, bearer("operator"))).values()


async def test_no_route_but_probes_answers_without_a_key(keys: str) -> None:
    async with _pod(keys) as (pod, _):
        application = pod.web._http._runner.app
        statuses = await http_statuses(application, pod.http_port, {})
        probes = {"GET /healthz", "HEAD /healthz", "GET /readyz", "HEAD /readyz"}
        assert {"POST /v1/chat/completions", "GET /metrics"} < set(statuses)
        assert {statuses[name] for name in probes} == {200}
        assert {statuses[name] for name in statuses.keys() - probes} == {401}
        known = await http_statuses(application, pod.http_port, {"Authorization": f"bearer {KEYS['t1']}"})
        assert 401 not in known.values()


async def test_a_refusal_over_http_is_openais_and_names_the_scheme(keys: str) -> None:
    async with _pod(keys) as (pod, _), aiohttp.ClientSession() as session:
        for path in ("v1/models", "no/such/path", "healthz/"):
            async with session.get(f"http://127.0.0.1:{pod.http_port}/{path}") as response:
                body = await response.json()
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert body["error"]["code"] == "invalid_api_key"
        async with session.get(f"http://127.0.0.1:{pod.metrics_port}/metrics") as response:
            assert response.status == 200


async def test_openais_client_is_served_with_its_key_and_refused_without(keys: str) -> None:
    async with _pod(keys) as (pod, _):
        base_url = f"http://127.0.0.1:{pod.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEYS["t1"], max_retries=0) as client:
            for cached in (0, 79):
                done = await client.completions.create(model="", prompt=list(PROMPT.ids), max_tokens=2)
                details = done.usage.prompt_tokens_details if done.usage else None
                assert details is not None
                assert details.cached_tokens == cached
        async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-of-nobody", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as refusal:
                await client.completions.create(model="", prompt="x")
            assert "sk-of-nobody" not in str(refusal.value)


async def test_a_tenant_finds_nothing_of_anothers_whatever_salt_it_writes(keys: str) -> None:
    """B152."""
    async with _pod(keys) as (_, channel):
        assert await _cached(channel, "t1") == 0
        assert await _cached(channel, "t1") == 79
        forged = ["", "t1", "2:t1", "\x02\0\0\0t1", "t1\0", tenant_salt("t1", ""), tenant_salt("t2", "t1")]
        assert [await _cached(channel, "t2", salt) for salt in forged] == [0] * len(forged)


async def test_http_and_grpc_give_a_tenant_one_cache_and_its_own_salts_part_it(keys: str) -> None:
    async with _pod(keys) as (pod, channel), aiohttp.ClientSession() as session:
        assert [await _cached(channel, "t1", salt) for salt in ("", "a", "a")] == [0, 0, 79]
        body = {"model": "", "prompt": list(PROMPT.ids), "max_tokens": 1}
        for tenant, cached in (("t1", 79), ("t2", 0)):
            headers = dict(bearer(tenant))
            async with session.post(
                f"http://127.0.0.1:{pod.http_port}/v1/completions", json=body, headers=headers
            ) as response:
                assert (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


async def test_an_admins_salt_is_taken_as_it_is(keys: str) -> None:
    async with _pod(keys) as (_, channel):
        await _ask(channel, "t1", "mine")
        assert await _cached(channel, "operator", tenant_salt("t1", "mine")) == 79
        lookup = cache_pb.LookupRequest(token_ids=PROMPT.ids, cache_salt=tenant_salt("t1", "mine"))
        found = await cache_rpc.PrefixCacheStub(channel).Lookup(lookup, metadata=bearer("operator"))
        assert found.matched_tokens == 79


async def test_tenants_that_trust_each_other_may_share_the_cache(keys: str) -> None:
    async with _pod(keys, server__auth__share_cache=True) as (_, channel):
        assert [await _cached(channel, tenant) for tenant in ("t1", "t2")] == [0, 79]
        assert await _cached(channel, "t2", "own") == 0


async def test_a_salt_that_is_too_long_is_refused_with_keys_too(keys: str) -> None:
    async with _pod(keys) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError, match="cache_salt: 300 bytes") as refusal:
            await _ask(channel, "t1", "x" * 300)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_keys_change_while_it_runs_and_are_never_written_down(
    keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with _pod(keys) as (pod, channel):
        (Path(keys) / "t1").write_text("the-key-that-came-after\n")
        pod.entrance.refresh()
        with pytest.raises(grpc.aio.AioRpcError, match="this key is not known here") as refusal:
            await _ask(channel, "t1")
        assert KEYS["t1"] not in str(refusal.value)
        answered = await rpc.InferenceStub(channel).GetModel(
            pb.GetModelRequest(), metadata=(("authorization", "Bearer the-key-that-came-after"),)
        )
        assert answered.name
    assert all(key not in caplog.text for key in [*KEYS.values(), "the-key-that-came-after"])


async def test_a_running_pod_looks_at_the_files_by_itself(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "_REFRESH_S", 0.01)
    metadata = (("authorization", "Bearer the-key-of-a-newcomer"),)
    async with _pod(keys) as (pod, _):
        (Path(keys) / "t3").write_text("the-key-of-a-newcomer")
        gate = pod.entrance.gate
        assert gate is not None
        await until(lambda: _knows(gate, metadata))


def _knows(gate: Gate, metadata: Metadata) -> bool:
    try:
        return gate.rpc_caller(metadata).tenant == "t3"
    except UnauthenticatedError:
        return False


async def test_health_needs_neither_key_nor_tls_on_its_own_port(keys: str, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("pod")
    async with _pod(keys, server__tls__cert_file=str(cert), server__tls__key_file=str(key)) as (pod, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{pod.health_port}") as channel:
            request = health_pb2.HealthCheckRequest(service="readiness")
            status = (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{pod.metrics_port}/metrics") as response,
        ):
            assert response.status == 200


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"server__auth__keys_dir": "/nowhere"}, r"server\.auth\.keys_dir: "),
        ({"server__tls__cert_file": "/nowhere"}, r"server\.tls\.key_file: set it too"),
        ({"server__tls__cert_file": "/nowhere", "server__tls__key_file": "/nowhere"}, r"server\.tls\.key_file: "),
        ({"server__tls__client_ca_file": "/nowhere"}, r"server\.tls\.cert_file: set it too"),
    ],
)
async def test_what_cannot_work_is_told_before_anything_is_loaded(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await start_simulated_pod("pod", **overrides)


def test_admins_are_named_between_commas() -> None:
    settings = load_settings({"server.auth.admin_tenants": " router, ops,"})
    assert entrance_options(settings.server).admin_tenants == {"router", "ops"}
