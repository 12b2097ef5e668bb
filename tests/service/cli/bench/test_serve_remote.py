"""Servers that take a request of `headstart bench serve` and then say nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from headstart.cli import client
from headstart.cli.bench import serve_remote
from headstart.cli.bench.serve_workloads import Ask
from headstart.errors import UnavailableError

HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HTTP_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def _hanging(first_words: bytes) -> AsyncIterator[int]:
    """The port of a server that says this to whoever connects, and reads on without a word."""

    async with asyncio.TaskGroup() as connections:

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(first_words)
            while await reader.read(1 << 16):
                pass
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(lambda *streams: connections.create_task(hang(*streams)), "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]


async def test_a_grpc_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PING_INTERVAL_S", 0.1)
    monkeypatch.setattr(client, "_PING_TIMEOUT_S", 0.2)
    async with _hanging(HTTP2_SETTINGS) as port:
        remote = serve_remote.GrpcClient(f"127.0.0.1:{port}", client.Access())
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await asyncio.wait_for(anext(remote.stream(Ask("one", [1], 1))), 30)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        await remote.close()


async def test_an_http_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_remote, "MAX_SILENCE_S", 0.2)
    async with _hanging(HTTP_ANSWER) as port:
        remote = serve_remote.HttpClient(f"http://127.0.0.1:{port}", "")
        with pytest.raises(UnavailableError, match="broke off: Timeout on reading"):
            await asyncio.wait_for(anext(remote.stream(Ask("one", [1], 1))), 30)
        await remote.close()
