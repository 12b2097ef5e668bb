"""A small API server that serves pods as it is told: it lists what it has, and its watches say what the test says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web


def pod(uid: str, version: int, *, ip: str = "10.0.0.1", **status: Any) -> dict[str, Any]:
    """`ready` and `terminating` are switches; anything else goes into the status."""
    ready, terminating = status.pop("ready", True), status.pop("terminating", False)
    metadata: dict[str, Any] = {"uid": uid, "name": f"pod-{uid}", "resourceVersion": str(version), "labels": {"a": "b"}}
    if terminating:
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "status": {"podIP": ip, "phase": "Running", "conditions": conditions} | status}


class KubeServer:
    """`pods` is what a list gives; `say` goes to the watch that is open. Listens on 127.0.0.1 while entered."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.token = ""
        self.page_size = 500
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def __aenter__(self) -> KubeServer:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def say(self, kind: str, item: dict[str, Any]) -> None:
        self._said.put_nowait({"type": kind, "object": item})

    def hang_up(self) -> None:
        """End the watch as a server does when its time is over."""
        self._said.put_nowait(None)

    async def until(self, *, num_lists: int = 0, num_watches: int = 0) -> None:
        async with asyncio.timeout(20):
            while len(self.lists) < num_lists or len(self.watches) < num_watches:
                await asyncio.sleep(0.005)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.token and request.headers.get("authorization") != f"bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        query = dict(request.query)
        if query.get("watch") == "true":
            self.watches.append(query)
            return await self._watch(request)
        self.lists.append(query)
        start = int(query.get("continue") or 0)
        end = start + self.page_size
        metadata = {"resourceVersion": "100"} | ({"continue": str(end)} if end < len(self.pods) else {})
        return web.json_response({"items": self.pods[start:end], "metadata": metadata})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self._said.get()) is not None:
            line = json.dumps(event).encode() + b"\n"
            # In two pieces: a line need not arrive whole.
            await response.write(line[:7])
            await response.write(line[7:])
        return response
