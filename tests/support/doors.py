"""Keys for tests, and a walk past every door of a process: each method of its services, each route of its HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

KEYS = {"operator": "operators-key-0123456789", "t1": "first-tenants-key-01234", "t2": "second-tenants-key-0123"}

Metadata = tuple[tuple[str, str], ...]


def write_keys(folder: Path) -> str:
    """A folder with the keys of all tenants."""
    folder.mkdir()
    for tenant, key in KEYS.items():
        (folder / tenant).write_text(f"{key}\n")
    return str(folder)


def bearer(tenant: str) -> Metadata:
    """The metadata of a call with this tenant's key."""
    return (("authorization", f"Bearer {KEYS[tenant]}"),)


async def rpc_statuses(port: int, metadata: Metadata = ()) -> dict[str, grpc.StatusCode]:
    """What each method that the server's reflection names says to an empty message: "Service/Method" -> status."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return {name: await _status(call) for name, call in await _calls(channel, metadata)}


async def _calls(channel: grpc.aio.Channel, metadata: Metadata) -> list[tuple[str, Any]]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    answer = await stub.ServerReflectionInfo(iter([request]), metadata=bearer("operator")).read()
    names = [service.name for service in answer.list_services_response.service]
    return [each for name in names for each in _calls_of(channel, name, metadata)]


def _calls_of(channel: grpc.aio.Channel, service: str, metadata: Metadata) -> Iterator[tuple[str, Any]]:
    for method in Default().FindServiceByName(service).methods:
        kind = "_".join(
            "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
        )
        message = iter([b""]) if method.client_streaming else b""
        call = getattr(channel, kind)(f"/{service}/{method.name}")(message, metadata=metadata, timeout=10)
        yield f"{service.rpartition('.')[2]}/{method.name}", call


async def _status(call: Any) -> grpc.StatusCode:
    """How it ends; OK for a stream that has begun."""
    try:
        if hasattr(call, "read"):
            await call.read()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


async def http_statuses(application: aiohttp.web.Application, port: int, headers: dict[str, str]) -> dict[str, int]:
    """What each route says: "METHOD /path" -> status."""
    statuses = {}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        for route in application.router.routes():
            path = route.resource.canonical.replace("{name}", "x")
            async with session.request(route.method, path) as response:
                statuses[f"{route.method} {path}"] = response.status
    return statuses
