"""The EnginePool that an operator is started with: made whenever there is none of its name, and kept to its settings.

It belongs to the operator's Deployment, when that is named, and goes with it. Only what the operator wrote itself is
kept: fields that a person adds stay, and so does the whole of a pool that is not the Deployment's. One that has the
operator's labels and no owner has lost it, as to a backup, and is taken back. Knows nothing of who may write. Owner of
its state: the task of the keeper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from headstart_operator.kube.client import Json, KubeClient, KubeError
from headstart_operator.kube.owner import owner_references
from headstart_operator.kube.pools import API_VERSION, KIND, pools_path

UNSEEN_INTERVAL_S = 60.0
"""Between tries to make a pool whose name is taken by one that the operator's watch does not show, and to adopt one
while the Deployment cannot be read."""

FOREIGN = "DefaultPoolNotKept"

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPool:
    """`labels` are its own; `deployment` is the name of its owner, "" for none."""

    name: str
    spec: Json
    labels: Mapping[str, str] = field(default_factory=dict)
    deployment: str = ""


class Done(NamedTuple):
    """What was written or found: the pool as it is now, and an event about it."""

    item: Json
    reason: str
    message: str
    kind: Literal["Normal", "Warning"] = "Normal"


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
        self._unadopted_s: float | None = None
        self._told: tuple[str, str] | None = None

    async def look(self, item: Json | None) -> Done | None:
        """Make the pool, or change what differs in `item`, which is None when there is none. Raises KubeError.

        None when there was nothing to do or to say that is new, or somebody else was quicker.
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
        if done is None or done.reason == FOREIGN:
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
        if metadata.get("deletionTimestamp"):
            return None
        spec = _difference(item.get("spec") or {}, self.pool.spec, exact=("matchLabels",))
        labels = _difference(metadata.get("labels") or {}, dict(self.pool.labels))
        written: Json = {"labels": labels} if labels else {}
        if not self._is_owned(metadata):
            owners = await self._adopting_owners(metadata)
            if not owners:
                return self._tell_foreign(item, _parts(spec, written))
            written["ownerReferences"] = owners
        if not spec and not written:
            return None
        return await self._change(item, spec, written)

    async def _change(self, item: Json, spec: Json, written: Json) -> Done | None:
        """`spec` and `written`, which is of the metadata, are merge patches."""
        version = {"resourceVersion": item["metadata"].get("resourceVersion")}
        body: Json = {"metadata": {**version, **written}, "spec": spec}
        try:
            changed = await self._kube.request("PATCH", f"{pools_path(self._namespace)}/{self.pool.name}", body=body)
        except KubeError as error:
            # It was changed or removed meanwhile: the next look sees how.
            if error.code not in (404, 409):
                raise
            return None
        parts = _parts(spec, written)
        _LOGGER.info("EnginePool %s changed to the settings: %s", self.pool.name, parts)
        return Done(changed, "DefaultPoolChanged", f"changed to the router's settings: {parts}")

    async def _adopting_owners(self, metadata: Json) -> list[Json]:
        """What makes a pool that has lost its owner the Deployment's again; [] for one that is somebody else's."""
        pool, now_s = self.pool, self._clock()
        if metadata.get("ownerReferences") or not self._is_labelled(metadata):
            return []
        if self._unadopted_s is not None and now_s - self._unadopted_s < UNSEEN_INTERVAL_S:
            return []
        owners = await owner_references(
            self._kube, pool.deployment, namespace=self._namespace, of=f"EnginePool {pool.name}"
        )
        self._unadopted_s = None if owners else now_s
        return owners

    def _tell_foreign(self, item: Json, parts: str) -> Done | None:
        """Once, and again when something else differs: what it is to be may change with every upgrade."""
        metadata = item["metadata"]
        said = (
            f"not kept to the router's settings, for {self._why_foreign(metadata)}; what differs: {parts or 'nothing'}"
        )
        if self._told == (told := (str(metadata.get("uid")), said)):
            return None
        self._told = told
        _LOGGER.log(logging.WARNING if parts else logging.INFO, "EnginePool %s is %s", self.pool.name, said)
        return Done(item, FOREIGN, said, "Warning" if parts else "Normal")

    def _why_foreign(self, metadata: Json) -> str:
        owners = metadata.get("ownerReferences")
        if owners:
            return "it belongs to " + ", ".join(f"{each.get('kind')} {each.get('name')}" for each in owners)
        if not self.pool.deployment:
            return "they name no Deployment that it could belong to"
        if self._is_labelled(metadata):
            return f"it has no owner, and Deployment {self.pool.deployment} cannot be read"
        return "it has neither an owner nor the router's own labels"

    def _is_labelled(self, metadata: Json) -> bool:
        """As the operator does it: whoever wrote it anew from a copy did not mean another pool."""
        labels = dict(self.pool.labels)
        return bool(labels) and not _difference(metadata.get("labels") or {}, labels)

    def _is_owned(self, metadata: Json) -> bool:
        wanted = ("Deployment", self.pool.deployment)
        owners = metadata.get("ownerReferences") or []
        return any((each.get("kind"), each.get("name")) == wanted for each in owners)


def _parts(spec: Json, written: Json) -> str:
    """The names of the fields that two patches change, of the spec and of the metadata."""
    return ", ".join(sorted([*(f"spec.{each}" for each in spec), *(f"metadata.{each}" for each in written)]))


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
