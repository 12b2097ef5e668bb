"""The objects of one Kubernetes collection, kept up to date.

A LIST is the truth; watch events only hint at changes, and whenever the watch is in doubt (410, an error, its end,
silence) the list is read anew. Knows nothing of what the objects are: whoever follows says how one is read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from headstart_operator.kube.client import Json, KubeClient, KubeError

SILENCE_S = 75.0
"""Bookmarks come every minute: a watch that says nothing for longer is dead, whatever TCP believes."""

_WATCH_S = 300
_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_MISSING_BACKOFF_S = 1.0
"""At most, while the API has no such collection, as when a resource's definition is replaced: that costs it little."""

_LOGGER = logging.getLogger(__name__)

Item = TypeVar("Item")


class Informer(Generic[Item]):
    """The collection at `path` that `selector`, a label selector, finds. `read` gives None for what is left out."""

    def __init__(
        self,
        kube: KubeClient,
        path: str,
        *,
        selector: str = "",
        read: Callable[[Json], Item | None],
        silence_s: float = SILENCE_S,
    ) -> None:
        self._kube = kube
        self._path = path
        self._name = path.rpartition("/")[2]
        self._selector = {"labelSelector": selector} if selector else {}
        self._read = read
        self._silence_s = silence_s

    async def follow(self) -> AsyncGenerator[Mapping[str, Item], None]:
        """By uid, after each list and each change. Never ends; while the API cannot be reached the last set stands."""
        backoff_s = _FIRST_BACKOFF_S
        told = ""
        clock = asyncio.get_running_loop().time
        while True:
            started_s = clock()
            try:
                items, version = await self._kube.list_all(self._path, self._selector)
                seen = _Seen(items, self._read)
                told = ""
                yield dict(seen.items)
                async with aclosing(self._watch(seen, version)) as sets:
                    async for found in sets:
                        yield found
            except TimeoutError:
                _LOGGER.warning("the watch of %s is silent, listing anew", self._name)
            except KubeError as error:
                if error.code == 404:
                    backoff_s = min(backoff_s, _MISSING_BACKOFF_S)
                if str(error) != told:
                    told = str(error)
                    _LOGGER.warning("the watch of %s ended (%s), listing anew", self._name, error)
            if clock() - started_s > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _watch(self, seen: _Seen[Item], version: str) -> AsyncGenerator[Mapping[str, Item], None]:
        last = dict(seen.items)
        params = {**self._selector, "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        async with aclosing(self._kube.watch(self._path, params, silence_s=self._silence_s)) as events:
            async for event in events:
                seen.take(str(event.get("type")), event.get("object") or {})
                if seen.items != last:
                    last = dict(seen.items)
                    yield dict(last)


class _Seen(Generic[Item]):
    """Objects by uid since the last list. An event that is older than what is known of its object changes nothing."""

    def __init__(self, items: Sequence[Json], read: Callable[[Json], Item | None]) -> None:
        self._read = read
        self._versions: dict[str, int] = {}
        self.items: dict[str, Item] = {}
        for item in items:
            self.take("ADDED", item)

    def take(self, kind: str, item: Json) -> None:
        uid = str((item.get("metadata") or {}).get("uid") or "")
        if kind not in ("ADDED", "MODIFIED", "DELETED") or not uid or not self._is_news(uid, item):
            return
        found = self._read(item)
        if kind == "DELETED" or found is None:
            self.items.pop(uid, None)
        else:
            self.items[uid] = found

    def _is_news(self, uid: str, item: Json) -> bool:
        version = str(item["metadata"].get("resourceVersion") or "")
        if not version.isdecimal():
            return True
        if int(version) <= self._versions.get(uid, -1):
            return False
        self._versions[uid] = int(version)
        return True
