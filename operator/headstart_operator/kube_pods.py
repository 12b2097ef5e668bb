"""The pods of a Kubernetes namespace by selector, as whole sets.

A LIST is the truth; watch events only hint at changes, and whenever the watch is in doubt (410, an error, its end,
silence) the list is read anew. Knows nothing of streams or routing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from headstart_operator.identity import PodRef
from headstart_operator.kube_client import Json, KubeClient, KubeError

SILENCE_S = 75.0
"""Bookmarks come every minute: a watch that says nothing for longer is dead, whatever TCP believes."""

_WATCH_S = 300
_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_ENDED_PHASES = ("Failed", "Succeeded")

_LOGGER = logging.getLogger(__name__)


class KubernetesPods:
    """The pods that `selector` finds in `namespace`. `port` is that of their gRPC server."""

    def __init__(
        self, kube: KubeClient, *, namespace: str, selector: str, port: int, silence_s: float = SILENCE_S
    ) -> None:
        self._kube = kube
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        self._port = port
        self._silence_s = silence_s

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        """Never ends; while the API cannot be reached the last set stands."""
        backoff_s = _FIRST_BACKOFF_S
        clock = asyncio.get_running_loop().time
        while True:
            started_s = clock()
            try:
                items, version = await self._kube.list_all(self._path, self._selector)
                seen = _Seen(items, self._port)
                yield seen.refs()
                async with aclosing(self._watch(seen, version)) as sets:
                    async for refs in sets:
                        yield refs
            except TimeoutError:
                _LOGGER.warning("the watch of pods is silent, listing anew")
            except KubeError as error:
                _LOGGER.warning("the watch of pods ended (%s), listing anew", error)
            if clock() - started_s > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _watch(self, seen: _Seen, version: str) -> AsyncGenerator[frozenset[PodRef], None]:
        last = seen.refs()
        params = {**self._selector, "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        async with aclosing(self._kube.watch(self._path, params, silence_s=self._silence_s)) as events:
            async for event in events:
                seen.take(str(event.get("type")), event.get("object") or {})
                if seen.refs() != last:
                    last = seen.refs()
                    yield last


class _Seen:
    """Pods by uid since the last list. An event that is older than what is known of its pod changes nothing."""

    def __init__(self, items: Sequence[Json], port: int) -> None:
        self._port = port
        self._versions: dict[str, int] = {}
        self._pods: dict[str, PodRef] = {}
        for item in items:
            self.take("ADDED", item)

    def refs(self) -> frozenset[PodRef]:
        return frozenset(self._pods.values())

    def take(self, kind: str, item: Json) -> None:
        uid = str((item.get("metadata") or {}).get("uid") or "")
        if kind not in ("ADDED", "MODIFIED", "DELETED") or not uid or not self._is_news(uid, item):
            return
        ref = pod_ref(item, self._port)
        if kind == "DELETED" or ref is None:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = ref

    def _is_news(self, uid: str, item: Json) -> bool:
        version = str(item["metadata"].get("resourceVersion") or "")
        if not version.isdecimal():
            return True
        if int(version) <= self._versions.get(uid, -1):
            return False
        self._versions[uid] = int(version)
        return True


def pod_ref(item: Json, port: int) -> PodRef | None:
    """None for a pod without an address of its own: not scheduled yet, or ended, as after an eviction."""
    metadata, status = item.get("metadata") or {}, item.get("status") or {}
    ip = status.get("podIP")
    if not ip or status.get("phase") in _ENDED_PHASES:
        return None
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return PodRef(
        uid=metadata["uid"],
        name=metadata.get("name") or metadata["uid"],
        address=f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}",
        is_ready=conditions.get("Ready") == "True",
        is_terminating=bool(metadata.get("deletionTimestamp")),
        labels=metadata.get("labels") or {},
    )
