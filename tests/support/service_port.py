"""A port that hands each new connection to the first router that is ready, as a Kubernetes Service does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from headstart_operator.app import Operator


@asynccontextmanager
async def service_port(operators: Sequence[Operator]) -> AsyncIterator[int]:
    """The port, on loopback."""
    server = await asyncio.start_server(partial(_connect, operators), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _connect(operators: Sequence[Operator], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ready = next(operator for operator in operators if not operator.health.is_leaving)
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", ready.grpc_port)
    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """From one to the other until either ends."""
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
