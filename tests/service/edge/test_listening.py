"""A port that cannot be had: known early, and said in the same words by whatever wanted it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import grpc.aio
import pytest
from aiohttp import web
from headstart.edge.http_server import HttpServer
from headstart.edge.listening import bind, check_port
from headstart.errors import ConfigError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_is_known_before_anything_is_built_on_it(host: str, taken: int) -> None:
    with pytest.raises(ConfigError, match=f"^cannot listen on {host}:{taken}: Address already in use; choose another"):
        check_port(host, taken)
    check_port(host, 0)


async def test_grpc_and_http_say_the_same_of_it_and_grpc_prints_nothing(
    taken: int, capfd: pytest.CaptureFixture[str]
) -> None:
    told = f"^cannot listen on 127.0.0.1:{taken}: Address already in use; choose another port$"
    server = grpc.aio.server()
    with pytest.raises(ConfigError, match=told):
        bind(server, "127.0.0.1", taken)
    await server.stop(None)
    with pytest.raises(ConfigError, match=told):
        await HttpServer(web.Application(), host="127.0.0.1", port=taken).start()
    assert capfd.readouterr().err == ""
