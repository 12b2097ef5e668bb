"""TLS from files, on real ports of gRPC and HTTP: what is refused at the start, who gets in, and how files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headstart.edge.health import HealthServicer
from headstart.edge.http_server import HttpServer
from headstart.edge.listening import bind
from headstart.edge.tls import NamedFile, ServerTls, client_credentials, open_server_tls
from headstart.errors import ConfigError
from support.certificates import Authority, Pair, lock_key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _named(cert: Path | str = "", key: Path | str = "", ca: Path | str = "") -> tuple[NamedFile, NamedFile, NamedFile]:
    names = ("cert_file", "key_file", "client_ca_file")
    cert_file, key_file, ca_file = map(NamedFile, names, map(str, (cert, key, ca)))
    return cert_file, key_file, ca_file


def _server(pair: Pair, ca: Path | str = "") -> ServerTls:
    return ServerTls(*_named(*pair, ca))


def _client(ca: Path, pair: Pair | None = None) -> grpc.ChannelCredentials:
    cert, key, roots = _named(*(pair or ("", "")), ca)
    return client_credentials(roots, cert, key)


def _context(ca: Path, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


@asynccontextmanager
async def _serving(tls: ServerTls) -> AsyncIterator[tuple[int, int]]:
    """The gRPC port, which serves health, and the HTTP port, which serves /."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    servicer = HealthServicer({"": lambda: True})
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1", 0, tls)
    await server.start()
    app = web.Application()
    app.router.add_get("/", answer)
    http = HttpServer(app, host="127.0.0.1", port=0, tls=tls)
    await http.start()
    try:
        yield port, http.port
    finally:
        servicer.close()
        await server.stop(None)
        await http.stop()


async def _rpc(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a new connection is served."""
    address = f"127.0.0.1:{port}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.aio.insecure_channel(address, options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options)
    )
    async with channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return True


async def _get(port: int, context: ssl.SSLContext | None) -> bool:
    """Whether a new connection is served."""
    scheme, verified = ("http", True) if context is None else ("https", context)
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"{scheme}://127.0.0.1:{port}/", ssl=verified) as response:
                return await response.text() == "ok"
        except aiohttp.ClientError:
            return False


async def test_only_who_trusts_the_certificate_is_served_and_nobody_in_plain_text(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with _serving(_server(authority.issue("server"))) as (port, http_port):
        assert [await _rpc(port, each) for each in (_client(authority.ca), _client(stranger.ca), None)] == [
            True,
            False,
            False,
        ]
        contexts = (_context(authority.ca), _context(stranger.ca), None)
        assert [await _get(http_port, each) for each in contexts] == [True, False, False]


async def test_with_a_client_ca_nobody_gets_in_without_a_certificate_of_it(
    authority: Authority, tmp_path: Path
) -> None:
    guests, strangers = Authority(tmp_path, "guests"), Authority(tmp_path, "strangers")
    shown = (guests.issue("guest"), strangers.issue("stranger"), None)
    async with _serving(_server(authority.issue("server"), guests.ca)) as (port, http_port):
        assert [await _rpc(port, _client(authority.ca, pair)) for pair in shown] == [True, False, False]
        assert [await _get(http_port, _context(authority.ca, pair)) for pair in shown] == [True, False, False]


async def test_new_files_are_served_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    after, pair = Authority(tmp_path, "after"), authority.issue("server")
    tls = _server(pair)
    async with _serving(tls) as (port, http_port):
        assert await _rpc(port, _client(authority.ca))
        _replace(pair, after.issue("server"))
        tls.refresh()
        assert [await _rpc(port, _client(ca)) for ca in (authority.ca, after.ca)] == [False, True]
        assert [await _get(http_port, _context(ca)) for ca in (authority.ca, after.ca)] == [False, True]


async def test_a_new_client_ca_takes_the_place_of_the_old_one(authority: Authority, tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    ca = tmp_path / "clients.pem"
    ca.write_bytes(before.ca.read_bytes())
    pairs = (before.issue("guest"), after.issue("guest"))
    tls = _server(authority.issue("server"), ca)
    async with _serving(tls) as (port, http_port):
        context = _context(authority.ca, pairs[0])
        assert await _get(http_port, context)
        ca.write_bytes(after.ca.read_bytes())
        tls.refresh()
        assert not await _get(http_port, context)
        assert [await _rpc(port, _client(authority.ca, pair)) for pair in pairs] == [False, True]
        assert [await _get(http_port, _context(authority.ca, pair)) for pair in pairs] == [False, True]


async def test_a_pair_that_does_not_fit_is_told_once_and_the_old_one_stays(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "headstart")
    pair = authority.issue("server")
    tls = _server(pair)
    async with _serving(tls) as (port, http_port):
        replacement = authority.issue("replacement")
        pair.cert.write_bytes(replacement.cert.read_bytes())
        tls.refresh()
        tls.refresh()
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "key_file: " in caplog.text
        assert await _rpc(port, _client(authority.ca))
        assert await _get(http_port, _context(authority.ca))
        pair.key.write_bytes(replacement.key.read_bytes())
        tls.refresh()
        assert len(caplog.records) == 1
        assert await _rpc(port, _client(authority.ca))


def _replace(pair: Pair, by: Pair) -> None:
    for old, new in zip(pair, by, strict=True):
        old.write_bytes(new.read_bytes())


def test_no_files_are_no_tls() -> None:
    assert open_server_tls(*_named()) is None


@pytest.mark.parametrize(
    ("given", "missing"),
    [({"cert": "x"}, "key_file"), ({"key": "x"}, "cert_file"), ({"ca": "x"}, "cert_file")],
)
def test_a_part_without_the_others_is_refused_by_the_name_of_what_is_missing(
    given: dict[str, str], missing: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{missing}: set it too"):
        open_server_tls(*_named(**given))


def test_each_file_that_cannot_work_is_named(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    other_key = authority.issue("other").key
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no PEM\n")
    wrong = {
        f"cert_file: {tmp_path}/gone cannot be read: No such file": (tmp_path / "gone", key),
        f"key_file: {tmp_path}/gone cannot be read: No such file": (cert, tmp_path / "gone"),
        f"cert_file: {nonsense} is not a certificate": (nonsense, key),
        f"key_file: {nonsense} is not a private key": (cert, nonsense),
        f"key_file: {other_key} is not the key of": (cert, other_key),
        f"client_ca_file: {nonsense} holds no certificates": (cert, key, nonsense),
        f"client_ca_file: {tmp_path}/gone cannot be read: No such file": (cert, key, tmp_path / "gone"),
    }
    for message, files in wrong.items():
        with pytest.raises(ConfigError) as caught:
            open_server_tls(*_named(*files))
        assert str(caught.value).startswith(message)


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    locked = tmp_path / "locked.key"
    lock_key(key, locked)
    with pytest.raises(ConfigError, match=r"^key_file: .* without a pass phrase"):
        open_server_tls(*_named(cert, locked))


def test_a_clients_files_are_checked_before_it_calls(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("client")
    with pytest.raises(ConfigError, match=r"^key_file: set it too"):
        _client(authority.ca, Pair(cert, ""))
    with pytest.raises(ConfigError, match=r"^client_ca_file: .* holds no certificates"):
        _client(key)
