"""Which of several operators writes: the holder of a Lease, as Kubernetes' own components choose theirs.

Clocks of different machines are never compared: a lease is taken over when it has not changed for its duration, as
seen on our own clock. A holder that could not renew in time stops holding by itself, whatever the API would say.
Knows nothing of what is written. Owner of its state: the task that runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from headstart_operator.kube.client import Json, KubeClient, KubeError
from headstart_operator.kube.owner import owner_references

# client-go's defaults.
DURATION_S = 15
RENEW_DEADLINE_S = 10.0
_RETRY_S = 2.0
_CALL_TIMEOUT_S = 5.0
_RELEASE_TIMEOUT_S = 2.0

_LOGGER = logging.getLogger(__name__)


class Lease:
    """`identity` names this process and nobody else. A lease that it creates belongs to `deployment`, "" for none.

    `clock` is monotonic seconds.
    """

    def __init__(
        self,
        kube: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        deployment: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._deployment = deployment
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self._identity = identity
        self._clock = clock
        self._item: Json = {}
        self._observed: Json | None = None
        self._observed_s = 0.0
        self._renewed_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_s is not None and self._clock() - self._renewed_s < RENEW_DEADLINE_S

    async def run(self) -> None:
        """Acquire it or renew it, for ever."""
        while True:
            was_held = self.is_held
            try:
                await self.attempt()
            except (KubeError, TimeoutError) as error:
                _LOGGER.warning("lease %s: %s", self._name, error)
            if self.is_held != was_held:
                _LOGGER.info("lease %s: %s", self._name, "held from now on" if self.is_held else "not held any more")
            await asyncio.sleep(_RETRY_S * random.uniform(0.8, 1.2))

    async def attempt(self) -> None:
        """Try once. Raises KubeError or TimeoutError when the API did not do it; then nothing has changed."""
        started_s = self._clock()
        async with asyncio.timeout(_CALL_TIMEOUT_S):
            if not self.is_held:
                await self._look()
            if not self._may_take():
                self._renewed_s = None
                return
            try:
                await self._write(self._taken())
            except KubeError as error:
                if error.code != 409:
                    raise
                # Somebody else was there first. What they wrote is read next time.
                self._renewed_s = None
                return
        self._renewed_s = started_s

    async def release(self) -> None:
        """Let another one take it at once. Does nothing when it is not held."""
        if not self.is_held:
            return
        self._renewed_s = None
        given_up = {**self._taken(), "holderIdentity": "", "leaseDurationSeconds": 1}
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await self._write(given_up)

    async def _look(self) -> None:
        try:
            self._take_item(await self._kube.request("GET", self._path))
        except KubeError as error:
            if error.code != 404:
                raise
            self._item, self._observed = {}, None

    def _take_item(self, item: Json) -> None:
        self._item = item
        spec = item.get("spec") or {}
        if spec != self._observed:
            self._observed = spec
            self._observed_s = self._clock()

    def _may_take(self) -> bool:
        spec = self._observed or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        return self._clock() - self._observed_s >= float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _taken(self) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = self._observed or {}
        is_ours = spec.get("holderIdentity") == self._identity
        transitions = int(spec.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": spec.get("acquireTime") if is_ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or not spec else transitions + 1,
        }

    async def _write(self, spec: Json) -> None:
        """Create it, or replace what was last seen of it: the version makes the API refuse when that has changed."""
        method, path = ("PUT", self._path) if self._item else ("POST", self._collection)
        metadata = self._item["metadata"] if self._item else await self._first_metadata()
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._take_item(await self._kube.request(method, path, body=body))

    async def _first_metadata(self) -> Json:
        owners = await owner_references(
            self._kube, self._deployment, namespace=self._namespace, of=f"lease {self._name}"
        )
        return {"name": self._name, "ownerReferences": owners}
