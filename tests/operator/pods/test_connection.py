"""A router before pods that ask for keys over TLS: who it lets in, what it tells pods, and what clients see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import openai
import pytest
from headstart.cli.route import operator_config
from headstart.config import load_settings
from headstart.contract.prefix import tenant_salt
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import router_pb2, router_pb2_grpc
from headstart.edge.entrance import EntranceOptions
from headstart.errors import ConfigError
from headstart_operator.pods.connection import PodAccess, PodConnector
from headstart_operator.pods.fixed import StaticPods
from headstart_operator.pods.fleet import Fleet
from operator_rig import Answer, Rig, generate, prompt, rig, start_simulated_pod, until
from support.certificates import Authority
from support.doors import KEYS, bearer, http_statuses, rpc_statuses, write_keys

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return write_keys(tmp_path / "keys")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def _guarded(keys: str, authority: Authority, **options: Any) -> AsyncIterator[Rig]:
    """Two pods that want keys and certificates, behind a router that wants keys."""
    cert, key = authority.issue("pod", alt_name="DNS:pods.test")
    own_cert, own_key = authority.issue("router")
    access = PodAccess(
        key=KEYS["operator"],
        ca_file=str(authority.ca),
        cert_file=str(own_cert),
        key_file=str(own_key),
        server_name="pods.test",
    )
    async with rig(
        2,
        config={"pod_access": access, "entrance": EntranceOptions(keys_dir=keys, **options)},
        server__auth__keys_dir=keys,
        server__tls__cert_file=str(cert),
        server__tls__key_file=str(key),
        server__tls__client_ca_file=str(authority.ca),
    ) as r:
        await until(lambda: len(r.operator.fleet.snapshot()) == 2)
        yield r


async def _ask(r: Rig, tenant: str, salt: str = "") -> Answer:
    request = pb.GenerateRequest(token_ids=prompt(3, 80), max_tokens=4, ignore_eos=True, cache_salt=salt)
    return await generate(r.stub, request, metadata=bearer(tenant))


async def _settled(r: Rig) -> None:
    """The index has the blocks of the one prompt that ran."""
    fleet = r.operator.fleet
    await until(lambda: any(fleet.index.digest(view.key).num_hashes == 5 for view in fleet.snapshot()))


async def test_hits_are_foretold_behind_keys_and_tls_and_only_of_the_callers_own(
    keys: str, authority: Authority
) -> None:
    async with _guarded(keys, authority) as r:
        cold = await _ask(r, "t1")
        await _settled(r)
        answers = [await _ask(r, "t1"), await _ask(r, "t2"), await _ask(r, "t2", tenant_salt("t1", ""))]
        assert cold.finished[0].usage.cached_tokens == 0
        cached = [answer.finished[0].usage.cached_tokens for answer in answers]
        foretold = [answer.finished[0].route.predicted_cached_tokens for answer in answers]
        assert cached == foretold == [79, 0, 0]


async def test_every_door_of_the_router_is_watched(keys: str, authority: Authority) -> None:
    async with _guarded(keys, authority) as r:
        statuses = await rpc_statuses(r.operator.grpc_port)
        health = {name for name in statuses if name.startswith("Health/")}
        assert {"Inference/Generate", "Router/DumpIndex"} < set(statuses)
        assert {statuses[name] for name in statuses.keys() - health} == {UNAUTHENTICATED}
        as_tenant = await rpc_statuses(r.operator.grpc_port, bearer("t1"))
        denied = {name for name, status in as_tenant.items() if status is DENIED}
        assert denied == {name for name in statuses if name.startswith("Router/")}
        routes = await http_statuses(r.operator.web._http._runner.app, r.operator.web.http_port, {})
        assert {name for name, status in routes.items() if status != 401} == {
            f"{method} {path}" for method in ("GET", "HEAD") for path in ("/healthz", "/readyz")
        }


async def test_openais_client_comes_through_with_its_key(keys: str, authority: Authority) -> None:
    async with _guarded(keys, authority) as r:
        base_url = f"http://127.0.0.1:{r.operator.web.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEYS["t2"], max_retries=0) as client:
            done = await client.completions.create(model="", prompt=[5] * 40, max_tokens=2)
            assert done.usage is not None
            assert done.usage.completion_tokens == 2
        async with openai.AsyncOpenAI(base_url=base_url, api_key="nobody", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.completions.create(model="", prompt=[5] * 40, max_tokens=2)


async def test_a_router_over_tls_shows_its_own_certificate(authority: Authority) -> None:
    cert, key = authority.issue("router")
    entrance = EntranceOptions(cert_file=str(cert), key_file=str(key))
    async with rig(1, config={"entrance": entrance}) as r:
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        address = f"127.0.0.1:{r.operator.grpc_port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            answer = await router_pb2_grpc.RouterStub(channel).GetPods(router_pb2.GetPodsRequest(), timeout=10)
        assert [pod.name for pod in answer.pods] == ["pod-0"]


async def test_turns_go_by_the_keys_tenant_whatever_salts_it_writes(keys: str, authority: Authority) -> None:
    async with _guarded(keys, authority, share_cache=True) as r:
        admitted: list[str] = []
        admit = r.operator.balancer.admit

        async def noting(job: Any, *, deadline_s: float | None) -> Any:
            admitted.append(job.tenant)
            return await admit(job, deadline_s=deadline_s)

        r.operator.balancer.admit = noting  # type: ignore[method-assign]
        await asyncio.gather(_ask(r, "t1", "a"), _ask(r, "t1", "b"))
        base_url = f"http://127.0.0.1:{r.operator.web.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEYS["t1"], max_retries=0) as client:
            await client.completions.create(model="", prompt=[5] * 40, max_tokens=1, extra_body={"cache_salt": "c"})
        assert admitted == ["t1"] * 3


async def test_a_pod_that_lets_the_router_in_no_more_is_told_of_once_and_is_not_the_clients_fault(
    keys: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with _guarded(keys, authority) as r:
        await _ask(r, "t1")
        (Path(keys) / "operator").write_text("another-key-for-the-router")
        for pod in r.pods:
            pod.entrance.refresh()
        with pytest.raises(grpc.aio.AioRpcError, match="does not let the router in") as refusal:
            await _ask(r, "t1")
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        await until(lambda: caplog.text.count("operator.pod_key must be a key") == 2)
        with pytest.raises(grpc.aio.AioRpcError, match="no pod serves this model now"):
            await _ask(r, "t1")
        (Path(keys) / "operator").write_text(KEYS["operator"])
        for pod in r.pods:
            pod.entrance.refresh()
        await until(lambda: len(r.operator.fleet.snapshot()) == 2)
        await _ask(r, "t1")
        assert caplog.text.count("operator.pod_key must be a key") == 2


async def test_a_router_whose_key_is_replaced_goes_on_with_the_new_one_from_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, own = write_keys(tmp_path / "keys"), tmp_path / "operator__pod_key"
    own.write_text(KEYS["operator"] + "\n")
    pod = await start_simulated_pod("pod", server__auth__keys_dir=keys)
    source = StaticPods((f"127.0.0.1:{pod.grpc_port}",))
    fleet = Fleet(source, connect=PodConnector(PodAccess(key=KEYS["operator"], key_source=str(own))).connect)
    fleet.start()
    try:
        await until(fleet.snapshot)
        (Path(keys) / "operator").write_text("another-key-for-the-router")
        pod.entrance.refresh()
        fleet.doubt(fleet.snapshot()[0].key)
        (followed,) = fleet.pods()
        await until(lambda: followed.subscriber.is_refused)
        own.write_text("\n")
        await until(lambda: "holds no key now" in caplog.text)
        own.write_text("another-key-for-the-router\n" + KEYS["operator"])
        await until(fleet.snapshot)
        assert not followed.subscriber.is_refused
        assert "another-key" not in caplog.text
    finally:
        await fleet.close()
        await pod.stop()


@pytest.mark.parametrize(("key", "status"), [("", "UNAUTHENTICATED"), (KEYS["t1"], "PERMISSION_DENIED")])
async def test_a_router_without_an_admins_key_is_told_what_to_set(
    keys: str, caplog: pytest.LogCaptureFixture, key: str, status: str
) -> None:
    pod = await start_simulated_pod("pod", server__auth__keys_dir=keys)
    source = StaticPods((f"127.0.0.1:{pod.grpc_port}",))
    fleet = Fleet(source, connect=PodConnector(PodAccess(key=key)).connect)
    fleet.start()
    try:
        await until(lambda: "operator.pod_key must be a key" in caplog.text)
        assert status in caplog.text
        assert not fleet.snapshot()
        assert KEYS["t1"] not in caplog.text
    finally:
        await fleet.close()
        await pod.stop()


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (PodAccess(key="kéy"), r"^operator\.pod_key: .* visible ASCII"),
        (PodAccess(cert_file="/x", key_file="/x"), r"operator\.pod_tls\.ca_file: set it too"),
        (PodAccess(server_name="x"), r"operator\.pod_tls\.ca_file: set it too"),
        (PodAccess(ca_file="/nowhere"), r"operator\.pod_tls\.ca_file: /nowhere cannot be read"),
    ],
)
def test_access_to_pods_that_cannot_work_is_named_at_the_start(access: PodAccess, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PodConnector(access)


def test_the_settings_of_access_reach_the_router() -> None:
    chosen = {"pod_key": "the-routers-own-key", "pod_tls.ca_file": "/ca", "pod_tls.server_name": "pods"}
    settings = {f"operator.{name}": value for name, value in chosen.items()} | {"operator.endpoints": "a:1"}
    config = operator_config(load_settings(settings | {"server.auth.keys_dir": "/keys", "server.tls.cert_file": "/c"}))
    assert config.pod_access == PodAccess(key="the-routers-own-key", ca_file="/ca", server_name="pods")
    assert (config.entrance.keys_dir, config.entrance.cert_file) == ("/keys", "/c")
    assert "the-routers-own-key" not in repr(config)


def test_of_a_file_of_two_keys_the_router_uses_the_first() -> None:
    given = {"operator.endpoints": "a:1", "operator.pod_key": "\nthe-routers-new-key\r\nthe-routers-old-key\n"}
    access = operator_config(load_settings(given)).pod_access
    assert access.key == "the-routers-new-key"
    PodConnector(access)


def test_the_routers_key_is_read_again_from_the_file_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "operator__pod_key"
    file.write_text("of-the-file\nold\n")

    def source() -> str:
        settings = load_settings({"operator.endpoints": "a:1"}, secrets_dir=str(tmp_path))
        return operator_config(settings, key_source=file).pod_access.key_source

    assert source() == str(file)
    monkeypatch.setenv("HEADSTART_OPERATOR__POD_KEY", "of-the-variable")
    assert source() == ""
