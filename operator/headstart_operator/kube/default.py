"""The EnginePool that an operator is started with: made whenever there is none of its name, and kept to its settings.

It belongs to the operator's Deployment, when that is named, and goes with it. Only what the operator wrote itself is
kept: fields that a person adds stay, and so does the whole of a pool that is not the Deployment's. Knows nothing of
who may write. Owner of its state: the task of the keeper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headstart_operator.kube.client import Json, KubeClient, KubeError
from headstart_operator.kube.owner import owner_references
from headstart_operator.kube.pools import API_VERSION, KIND, pools_path

UNSEEN_INTERVAL_S = 60.0
"""Between tries to make a pool whose name is taken by one that the operator's watch does not show."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPool:
    """`labels` are its own; `deployment` is the name of its owner, "" for none."""

    name: str
    spec: Json
    labels: Mapping[str, str] = field(default_factory=dict)
    deployment: str = ""


class Done(NamedTuple):
    """What was written: the pool as it is now, and the words of an event about it."""

    item: Json
    reason: str
    message: str


class DefaultPoolKeeper:
    """`clock` is monotonic seconds."""

    def __init__(
        self, kube: KubeClient, pool: DefaultPool, *, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self.pool = pool
        self._namespace = namespace
        self._clock = clock
        self._unseen_s: float | None = None

    async def look(self, item: Json | None) -> Done | None:
        """Make the pool, or change what differs in `item`, which is None when there is none. Raises KubeError.

        None when there was nothing to do, or somebody else was quicker.
        """
        if item is not None:
            self._unseen_s = None
            return await self._follow(item)
        if self._unseen_s is not None and self._clock() - self._unseen_s < UNSEEN_INTERVAL_S:
            return None
        try:
            return await self._create()
        except KubeError as error:
            if error.code != 409:
                raise
        # Its labels may be those of other settings, so that the watch leaves it out.
        found = await self._kube.request("GET", f"{pools_path(self._namespace)}/{self.pool.name}")
        done = await self._follow(found)
        if done is None:
            self._unseen_s = self._clock()
        return done

    async def _create(self) -> Done:
        pool = self.pool
        owners = await owner_references(
            self._kube, pool.deployment, namespace=self._namespace, of=f"EnginePool {pool.name}"
        )
        metadata = {
            "name": pool.name,
            "namespace": self._namespace,
            "labels": dict(pool.labels),
            "ownerReferences": owners,
        }
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": pool.spec}
        made = await self._kube.request("POST", pools_path(self._namespace), body=body)
        _LOGGER.info("EnginePool %s created", pool.name)
        return Done(made, "DefaultPoolCreated", "made from the router's settings, as there was none of this name")

    async def _follow(self, item: Json) -> Done | None:
        metadata = item["metadata"]
        if metadata.get("deletionTimestamp") or not self._is_owned(metadata):
            return None
        spec = _difference(item.get("spec") or {}, self.pool.spec, exact=("matchLabels",))
        labels = _difference(metadata.get("labels") or {}, dict(self.pool.labels))
        if not spec and not labels:
            return None
        body: Json = {"metadata": {"resourceVersion": metadata.get("resourceVersion"), "labels": labels}, "spec": spec}
        try:
            changed = await self._kube.request("PATCH", f"{pools_path(self._namespace)}/{self.pool.name}", body=body)
        except KubeError as error:
            # It was changed or removed meanwhile: the next look sees how.
            if error.code not in (404, 409):
                raise
            return None
        parts = sorted([f"spec.{each}" for each in spec] + (["metadata.labels"] if labels else []))
        _LOGGER.info("EnginePool %s changed to the settings: %s", self.pool.name, ", ".join(parts))
        return Done(changed, "DefaultPoolChanged", f"changed to the router's settings: {', '.join(parts)}")

    def _is_owned(self, metadata: Json) -> bool:
        wanted = ("Deployment", self.pool.deployment)
        owners = metadata.get("ownerReferences") or []
        return any((each.get("kind"), each.get("name")) == wanted for each in owners)


def _difference(old: Json, wanted: Json, *, exact: tuple[str, ...] = (), is_exact: bool = False) -> Json:
    """A merge patch that brings `wanted` into `old`, {} when it is there.

    Other fields of `old` stay, except inside fields named in `exact`.
    """
    patch: dict[str, Any] = {}
    for key, value in wanted.items():
        before = old.get(key)
        if not isinstance(value, dict):
            if before != value:
                patch[key] = value
            continue
        inner = _difference(before if isinstance(before, dict) else {}, value, exact=exact, is_exact=key in exact)
        if inner or not isinstance(before, dict):
            patch[key] = inner
    if is_exact:
        patch |= {key: None for key in old if key not in wanted}
    return patch
