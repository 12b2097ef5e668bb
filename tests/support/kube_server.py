"""A small API server: it keeps objects as the real one does where that matters, and its watches say what the test says.

Versions, conflicts, merge patches, the status subresource and label selectors are real; nothing is checked against a
schema. What a test changes with `put` and `remove`, and what clients write, is told to the watches by itself unless the
server `is_mute`; `say` tells them anything else, in any order.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
from typing import Any, NamedTuple

from aiohttp import web

Json = dict[str, Any]

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/headstart.dev/v1alpha1/namespaces/ns/enginepools"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
EVENTS = "/api/v1/namespaces/ns/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/ns/deployments"

_PATH = re.compile(r"(?P<collection>/apis?/.*?/namespaces/[^/]+/[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?")
_TERM = re.compile(r"(!?)([^\s=!(),]+)\s*(?:(=)\s*([^,()]*)|\s(in|notin)\s+\(([^)]*)\))?")


def pod(uid: str, version: int = 1, *, ip: str = "10.0.0.1", **status: Any) -> Json:
    """`ready`, `terminating` and `labels` are told apart; anything else goes into the status."""
    ready, terminating = status.pop("ready", True), status.pop("terminating", False)
    labels = status.pop("labels", {"app": "x"})
    metadata: Json = {"uid": uid, "name": f"pod-{uid}", "resourceVersion": str(version), "labels": labels}
    if terminating:
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "status": {"podIP": ip, "phase": "Running", "conditions": conditions} | status}


def engine_pool(name: str, **spec: Any) -> Json:
    """An EnginePool that selects `app=<name>` unless told otherwise."""
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "headstart.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": {"name": name},
        "spec": {"selector": selector} | spec,
    }


def matches(selector: str, labels: dict[str, str]) -> bool:
    """As the API reads a label selector, for the forms that are used here."""
    for negated, key, equals, value, operator, values in _TERM.findall(selector):
        listed = [each.strip() for each in values.split(",")]
        if equals:
            fits = labels.get(key) == value
        elif operator:
            fits = (labels.get(key) in listed) == (operator == "in")
        else:
            fits = (key in labels) != bool(negated)
        if not fits:
            return False
    return True


class _Refusal(NamedTuple):
    method: str
    part: str
    code: int


class KubeServer:
    """Listens on 127.0.0.1 while entered. `pods` is a collection; `calls` are (method, path) of all requests."""

    def __init__(self) -> None:
        self.collections: dict[str, list[Json]] = {}
        self.token = ""
        self.page_size = 500
        self.is_mute = False
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.calls: list[tuple[str, str]] = []
        self.refusals: list[_Refusal] = []
        self._version = 99
        # What watches say, one after the other; a watch begins where the list was made whose version it names.
        self._log: list[tuple[str, Json | None]] = []
        self._marks: dict[str, int] = {}
        self._moved = asyncio.Event()

    async def __aenter__(self) -> KubeServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    # ---- for tests

    @property
    def pods(self) -> list[Json]:
        return self.collections.setdefault(PODS, [])

    @pods.setter
    def pods(self, items: list[Json]) -> None:
        self.collections[PODS] = items

    def put(self, collection: str, item: Json) -> Json:
        """Create it or replace it, as somebody with all rights does; a new spec is a new generation."""
        old = self.find(collection, item["metadata"]["name"])
        new = copy.deepcopy(item)
        metadata = new["metadata"]
        if old is None:
            metadata.setdefault("uid", f"uid-{metadata['name']}")
            metadata["generation"] = 1
        else:
            metadata["uid"] = old["metadata"]["uid"]
            is_changed = new.get("spec") != old.get("spec")
            metadata["generation"] = old["metadata"].get("generation", 1) + is_changed
        self._store(collection, old, new)
        return new

    def remove(self, collection: str, name: str) -> None:
        old = self.find(collection, name)
        assert old is not None
        self.collections[collection].remove(old)
        self._version += 1
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._announce(collection, "DELETED", gone)

    def find(self, collection: str, name: str) -> Json | None:
        items = self.collections.setdefault(collection, [])
        return next((item for item in items if item["metadata"].get("name") == name), None)

    def refuse(self, method: str, part: str, code: int, *, times: int = 1) -> None:
        """Answer the next requests of this kind with an error."""
        self.refusals += [_Refusal(method, part, code)] * times

    def say(self, kind: str, item: Json, *, collection: str = PODS) -> None:
        """To every watch of a collection whose selector finds the item. Errors and bookmarks are for all."""
        self._log.append((collection, {"type": kind, "object": item}))
        self._move()

    def hang_up(self, *, collection: str = PODS) -> None:
        """End the watches as a server does when their time is over."""
        self._log.append((collection, None))
        self._move()

    async def until(self, *, num_lists: int = 0, num_watches: int = 0) -> None:
        """So many lists and watches were asked for, of any collection."""
        async with asyncio.timeout(20):
            while len(self.lists) < num_lists or len(self.watches) < num_watches:
                await self._moved.wait()

    def verbs(self) -> set[tuple[str, str]]:
        """What was done to which resources, in the words of RBAC."""
        words = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        found = set()
        for method, path in self.calls:
            match = _PATH.fullmatch(path)
            assert match is not None, path
            resource = match["collection"].rpartition("/")[2] + (f"/{match['sub']}" if match["sub"] else "")
            found.add((words.get(method) or ("get" if match["name"] else "list"), resource))
        return found

    # ---- serving

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        if self.token and request.headers.get("authorization") != f"bearer {self.token}":
            return _status(401)
        for refusal in self.refusals:
            if refusal.method == request.method and refusal.part in request.path:
                self.refusals.remove(refusal)
                return _status(refusal.code)
        match = _PATH.fullmatch(request.path)
        if match is None:
            return _status(404)
        collection, name, is_status = match["collection"], match["name"], bool(match["sub"])
        if request.method == "POST":
            return self._create(collection, await request.json())
        if name is None:
            return await self._list_or_watch(request, collection)
        item = self.find(collection, name)
        if item is None:
            return _status(404)
        if request.method in ("PUT", "PATCH"):
            return self._change(collection, item, await request.json(), request, is_status=is_status)
        return web.json_response(item)

    async def _list_or_watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        query = dict(request.query)
        selector = query.get("labelSelector", "")
        if query.get("watch") == "true":
            self.watches.append(query)
            self._move()
            return await self._watch(request, collection, selector)
        self.lists.append(query)
        if "continue" not in query:
            self._version += 1
            self._marks[str(self._version)] = len(self._log)
        self._move()
        items = [
            item
            for item in self.collections.setdefault(collection, [])
            if matches(selector, item["metadata"].get("labels") or {})
        ]
        start = int(query.get("continue") or 0)
        end = start + self.page_size
        metadata = {"resourceVersion": str(self._version)} | ({"continue": str(end)} if end < len(items) else {})
        return web.json_response({"items": items[start:end], "metadata": metadata})

    async def _watch(self, request: web.Request, collection: str, selector: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        at = self._marks[request.query["resourceVersion"]]
        while True:
            moved = self._moved
            for path, event in self._log[at:]:
                at += 1
                if path != collection:
                    continue
                if event is None:
                    return response
                labels = event["object"].get("metadata", {}).get("labels") or {}
                if event["type"] in ("ERROR", "BOOKMARK") or matches(selector, labels):
                    await _write(response, event)
            await moved.wait()

    def _move(self) -> None:
        """Wake whoever waits for something to happen."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _create(self, collection: str, item: Json) -> web.Response:
        if self.find(collection, item["metadata"]["name"]) is not None:
            return _status(409)
        return web.json_response(self.put(collection, item), status=201)

    def _change(self, collection: str, old: Json, body: Json, request: web.Request, *, is_status: bool) -> web.Response:
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            return _status(409)
        if request.method == "PATCH":
            if request.headers["content-type"] != "application/merge-patch+json":
                return _status(415)
            new = _merged(old, body)
        else:
            new = copy.deepcopy(body)
        # Each subresource writes its own part only.
        kept, given = ("spec", "status") if is_status else ("status", "spec")
        new = {**new, **({kept: old[kept]} if kept in old else {})}
        if not is_status and new.get(given) != old.get(given):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        self._store(collection, old, new)
        return web.json_response(new)

    def _store(self, collection: str, old: Json | None, new: Json) -> None:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        items = self.collections.setdefault(collection, [])
        if old is None:
            items.append(new)
        else:
            items[items.index(old)] = new
        self._announce(collection, "ADDED" if old is None else "MODIFIED", new)

    def _announce(self, collection: str, kind: str, item: Json) -> None:
        if not self.is_mute:
            self.say(kind, item, collection=collection)


async def _write(response: web.StreamResponse, event: Json) -> None:
    line = json.dumps(event).encode() + b"\n"
    # In two pieces: a line need not arrive whole. A client that has gone needs nothing more.
    with contextlib.suppress(ConnectionError):
        await response.write(line[:7])
        await response.write(line[7:])


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merged(new.get(key), value)
    return new


def _status(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code}, status=code)
