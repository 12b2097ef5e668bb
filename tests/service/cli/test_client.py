"""The client commands before servers that want a key, or TLS, or both."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import pytest
from headstart.cli import client, main
from headstart.edge.entrance import EntranceOptions
from headstart.errors import ConfigError
from headstart_operator.pods.connection import PodAccess
from operator_rig import rig, start_simulated_pod
from support.certificates import Authority
from support.doors import KEYS, write_keys


def _parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    client.add_endpoint_flags(parser)
    return parser.parse_args(flags)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(client.KEY_VARIABLE, raising=False)


def test_a_keys_file_wins_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client.KEY_VARIABLE, "of the variable".replace(" ", "-"))
    assert client.access_from(_parsed()).key == "of-the-variable"
    (tmp_path / "key").write_text("of-the-file\n")
    access = client.access_from(_parsed("--api-key-file", str(tmp_path / "key")))
    assert access.key == "of-the-file"
    assert "of-the-file" not in repr(access)
    assert access.credentials is None


def test_of_a_file_with_two_keys_the_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("\nthe-first \r\nthe-second\n")
    assert client.access_from(_parsed("--api-key-file", str(tmp_path / "key"))).key == "the-first"
    monkeypatch.setenv(client.KEY_VARIABLE, "one\ntwo")
    assert client.access_from(_parsed()).key == "one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("canary and more", "one word of visible ASCII"),
        ("\n \n", "is empty"),
        ("ü", "ASCII"),
    ],
)
def test_a_file_that_holds_no_key_is_named_and_never_shown(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"^--api-key-file: {path}.*{message}") as caught:
        client.access_from(_parsed("--api-key-file", str(path)))
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--api-key-file: /nowhere cannot be read"):
        client.access_from(_parsed("--api-key-file", "/nowhere"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ca-file", "/nowhere"], r"^--ca-file: /nowhere cannot be read"),
        (["--cert-file", "/nowhere"], r"^--cert-file: needs --tls"),
        (["--tls-server-name", "x"], r"^--tls-server-name: needs --tls"),
        (["--tls", "--cert-file", "/nowhere"], r"^--key-file: set it too"),
    ],
)
def test_flags_of_tls_that_cannot_work_are_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        client.access_from(_parsed(*flags))


async def test_every_command_gets_in_with_key_and_certificate_and_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, keys = Authority(tmp_path), write_keys(tmp_path / "keys")
    cert, key = map(str, authority.issue("all"))
    pods = PodAccess(key=KEYS["operator"], ca_file=str(authority.ca), cert_file=cert, key_file=key)
    door = {"cert_file": cert, "key_file": key, "client_ca_file": str(authority.ca), "keys_dir": keys}
    entrance = EntranceOptions(**door)
    overrides = {f"server__{'auth' if name == 'keys_dir' else 'tls'}__{name}": value for name, value in door.items()}
    encrypted = ["--ca-file", str(authority.ca), "--cert-file", cert, "--key-file", key]
    async with rig(1, config={"pod_access": pods, "entrance": entrance}, **overrides) as r:
        pod, router = (["--endpoint", f"127.0.0.1:{port}"] for port in (r.pods[0].grpc_port, r.operator.grpc_port))

        async def run(*arguments: str, tenant: str = "") -> tuple[int, str, str]:
            held = ["--api-key-file", f"{keys}/{tenant}"] if tenant else []
            limit = [] if arguments[0] == "bench" else ["--timeout", "20"]
            code = await asyncio.to_thread(main, [*arguments, *held, *limit])
            return code, *capsys.readouterr()

        asked = ("generate", "--token-ids", "1,2,3", "--max-tokens", "2", "--json")
        for endpoint in (pod, router):
            code, printed, told = await run(*asked, *endpoint, *encrypted, tenant="t1")
            assert (code, told) == (0, "")
            assert "finished" in json.loads(printed.splitlines()[-1])
        _, _, told = await run("tokenize", "hello", *router, *encrypted, tenant="t2")
        assert told.startswith("headstart: FAILED_PRECONDITION: ")  # it got in; simulated pods have no tokenizer
        code, printed, _ = await run("cache", "verify", "--json", *router, *encrypted, tenant="operator")
        assert (code, [pod["problem"] for pod in json.loads(printed)["pods"]]) == (0, [""])
        assert (await run("cache", "show", "--json", *pod, *encrypted, tenant="operator"))[0] == 0
        code, printed, _ = await run(
            *("bench", "serve", "--workloads", "W1", "--reps", "1", *router, *encrypted), tenant="t1"
        )
        assert (code, json.loads(printed.splitlines()[-1])["W1"]["requests"]) == (0, 1)

        code, _, told = await run(*asked, *pod, *encrypted)
        assert (code, told) == (1, "headstart: UNAUTHENTICATED: authorization: no key; send it as 'Bearer KEY'\n")
        code, _, told = await run("cache", "show", *pod, *encrypted, tenant="t1")
        assert code == 1
        assert told.startswith("headstart: PERMISSION_DENIED: headstart.v1.PrefixCache")
        code, _, told = await run(*asked, *pod, "--ca-file", str(authority.ca), tenant="t1")
        assert (code, told.startswith("headstart: UNAVAILABLE")) == (1, True)
        assert KEYS["t1"] not in told


async def test_who_asks_a_pod_what_routers_know_is_told_so_and_the_reverse(capsys: pytest.CaptureFixture[str]) -> None:
    async with rig(1) as r:
        pod, router = r.address(0), f"127.0.0.1:{r.operator.grpc_port}"
        health = f"127.0.0.1:{r.pods[0].health_port}"
        for command, endpoint, hint in (
            (["cache", "show"], router, "is it a router? Use `headstart cache verify`, or --endpoint of a pod"),
            (["cache", "verify"], pod, "is it a pod? Use `headstart cache show`, or --endpoint of a router"),
            (["generate", "hi"], health, "is it the gRPC port of a pod or of a router?"),
        ):
            assert await asyncio.to_thread(main, [*command, "--endpoint", endpoint, "--timeout", "20"]) == 1
            told = f"headstart: UNIMPLEMENTED: {endpoint} does not offer this ({hint})\n"
            assert capsys.readouterr().err == told


async def test_a_connection_that_cannot_come_about_is_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    pair = authority.issue("pod")
    tls = {"server__tls__cert_file": str(pair.cert), "server__tls__key_file": str(pair.key)}
    locked, plain = await start_simulated_pod("locked", **tls), await start_simulated_pod("plain")
    try:
        for port, flags, hint in (
            (locked.grpc_port, [], "(does 127.0.0.1:{} want TLS? Then add --tls or --ca-file)"),
            (locked.grpc_port, ["--ca-file", str(other.ca)], "(--ca-file names who signed the server's certificate)"),
            (
                locked.grpc_port,
                ["--ca-file", str(authority.ca), "--tls-server-name", "wrong.example"],
                "(the certificate of 127.0.0.1:{} names another host: --tls-server-name says which to look for)",
            ),
            (plain.grpc_port, ["--tls"], "(does 127.0.0.1:{} speak plain text? Then leave out --tls and --ca-file)"),
            (1, [], "(is a pod running at 127.0.0.1:{}?)"),
        ):
            command = ["tokenize", "hi", "--endpoint", f"127.0.0.1:{port}", "--timeout", "20", *flags]
            assert await asyncio.to_thread(main, command) == 1
            told = capfd.readouterr().err.splitlines()[-1]
            assert told.startswith("headstart: UNAVAILABLE: ")
            assert told.endswith(hint.format(port))
    finally:
        await locked.stop()
        await plain.stop()
