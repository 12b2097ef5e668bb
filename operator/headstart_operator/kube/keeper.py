"""Writes what the operator knows of its EnginePools into the cluster: status and events, and the default pool.

Only the holder of the Lease writes, and asks before each write whether it still is. A status is written when it
differs, at most once a second, and when only its figures do, at most every 15 s; with the version that it was made
from, so that a conflict is noticed and the object read anew. Owner of its state: the task that runs it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headstart_operator.kube.client import Json, KubeClient, KubeError
from headstart_operator.kube.default import DefaultPool, DefaultPoolKeeper
from headstart_operator.kube.events import EventRecorder
from headstart_operator.kube.lease import Lease
from headstart_operator.kube.pools import KubernetesPools, pools_path
from headstart_operator.kube.status import missing_pods, pool_status, troubles
from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.survey import PoolSurvey, survey_pool

LOOK_S = 0.25
"""Between looks, which cost no call: what pods have become is written soon after, not by the beat of the writing."""

INTERVAL_S = 1.0
FIGURES_INTERVAL_S = 15.0
_AFTER_ERROR_S = 5.0
_TELL_INTERVAL_S = 60.0
"""Between events about which pods differ or refuse the router: as pods come one by one, each would change the words."""

_ESSENTIAL = ("observedGeneration", "conditions", "pods")

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """What is remembered of a pool. `item` is its newest version; `written_s` is when its status was written last.

    The rest is what events have told already.
    """

    item: Json
    written_s: float | None = None
    failed_s: float | None = None
    is_empty: bool = False
    problem: str = ""
    troubles: tuple[tuple[str, str], ...] = ()
    troubles_s: float | None = None
    digest_resyncs: Mapping[str, int] = field(default_factory=dict)


class PoolKeeper:
    """`default` is a pool to make when it is not there, and to keep to its settings. `clock` is monotonic seconds."""

    def __init__(
        self,
        kube: KubeClient,
        lease: Lease,
        pools: KubernetesPools,
        events: EventRecorder,
        *,
        default: DefaultPool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._lease = lease
        self._pools = pools
        self._events = events
        self._clock = clock
        self.default = (
            DefaultPoolKeeper(kube, default, namespace=pools.namespace, clock=clock) if default is not None else None
        )
        self._kept: dict[str, _Kept] = {}

    async def run(self, fleet: Fleet) -> None:
        """Look, for ever."""
        while True:
            try:
                await self.look(fleet)
            except KubeError as error:
                _LOGGER.warning("the default EnginePool was not made or changed: %s", error)
                await asyncio.sleep(_AFTER_ERROR_S)
            await asyncio.sleep(LOOK_S)

    async def look(self, fleet: Fleet) -> None:
        """Write what has to be written now. A status that the API does not take is tried again later.

        Raises KubeError, after all else was done, when the default pool cannot be made or changed.
        """
        if not self._lease.is_held:
            self._kept.clear()
            return
        if fleet.is_ready:
            await self._look_at_pools(fleet)
        if self.default is not None and self._pools.has_listed and self._lease.is_held:
            done = await self.default.look(self._pools.objects.get(self.default.pool.name))
            if done is not None:
                await self._events.record(done.item, done.reason, done.message, kind=done.kind)

    async def _look_at_pools(self, fleet: Fleet) -> None:
        objects = self._pools.objects
        present = {str(item["metadata"]["uid"]) for item in objects.values()}
        self._kept = {uid: kept for uid, kept in self._kept.items() if uid in present}
        for name, item in list(objects.items()):
            survey = survey_pool(fleet, name, takers=self._pools.takers(name))
            problem = self._pools.problems.get(name, "")
            kept = self._keep(item, survey)
            await self._tell(kept, survey, problem)
            await self._write(kept, survey, problem)

    def _keep(self, item: Json, survey: PoolSurvey) -> _Kept:
        uid = str(item["metadata"]["uid"])
        kept = self._kept.get(uid)
        if kept is None:
            kept = self._kept[uid] = _Kept(item, digest_resyncs=survey.digest_resyncs)
        elif _version(item) > _version(kept.item):
            kept.item = item
        return kept

    # ---- events

    async def _tell(self, kept: _Kept, survey: PoolSurvey, problem: str) -> None:
        """What is new since the last look."""
        said: list[tuple[str, str]] = []
        if problem and problem != kept.problem:
            said.append(("InvalidSpec", problem))
        is_empty = not problem and not survey.num_total
        if is_empty and not kept.is_empty:
            said.append(("NoPods", missing_pods(survey)))
        said += self._new_troubles(kept, survey)
        for pod, count in survey.digest_resyncs.items():
            if count > kept.digest_resyncs.get(pod, 0):
                said.append(("IndexResync", f"{pod}: its digest did not match the index, a snapshot was read anew"))
        kept.problem, kept.is_empty, kept.digest_resyncs = problem, is_empty, survey.digest_resyncs
        for reason, message in said:
            if self._lease.is_held:
                await self._events.record(kept.item, reason, message, kind="Warning")

    def _new_troubles(self, kept: _Kept, survey: PoolSurvey) -> list[tuple[str, str]]:
        found = troubles(survey)
        is_too_soon = kept.troubles_s is not None and self._clock() - kept.troubles_s < _TELL_INTERVAL_S
        if found == kept.troubles or (found and is_too_soon):
            return []
        new = [each for each in found if each not in kept.troubles]
        kept.troubles = found
        if new:
            kept.troubles_s = self._clock()
        return new

    # ---- status

    async def _write(self, kept: _Kept, survey: PoolSurvey, problem: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = pool_status(survey, problem=problem, item=kept.item, now=now)
        if not self._is_due(kept, status) or not self._lease.is_held:
            return
        metadata = kept.item["metadata"]
        path = f"{pools_path(self._pools.namespace)}/{metadata['name']}"
        body = {"metadata": {"resourceVersion": metadata.get("resourceVersion")}, "status": status}
        try:
            kept.item = await self._kube.request("PATCH", f"{path}/status", body=body)
            kept.written_s, kept.failed_s = self._clock(), None
        except KubeError as error:
            kept.failed_s = self._clock()
            if error.code == 409:
                await self._read_anew(kept, path)
            elif error.code != 404:
                _LOGGER.warning("the status of EnginePool %s was not taken: %s", metadata["name"], error)

    def _is_due(self, kept: _Kept, status: Json) -> bool:
        """Whether it differs, and neither a write nor a failure was too short a time ago."""
        before = kept.item.get("status") or {}
        if all(before.get(key) == value for key, value in status.items()):
            return False
        now_s = self._clock()
        if kept.failed_s is not None and now_s - kept.failed_s < _AFTER_ERROR_S:
            return False
        is_essential = any(before.get(key) != status[key] for key in _ESSENTIAL)
        interval_s = INTERVAL_S if is_essential else FIGURES_INTERVAL_S
        return kept.written_s is None or now_s - kept.written_s >= interval_s

    async def _read_anew(self, kept: _Kept, path: str) -> None:
        """Somebody else has written: what comes next is made from what they wrote."""
        try:
            kept.item = await self._kube.request("GET", path)
            kept.failed_s = None
        except KubeError as error:
            _LOGGER.warning("an EnginePool could not be read: %s", error)


def _version(item: Json) -> int:
    version = str(item["metadata"].get("resourceVersion") or "")
    return int(version) if version.isdecimal() else 0
