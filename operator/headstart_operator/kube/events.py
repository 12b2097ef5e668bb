"""Events on EnginePools, for `kubectl describe` and whoever watches them. Losing one loses nothing but words.

What happens again is counted on its event instead of told again, and at most once a minute. Knows nothing of pods.
Owner of its state: whoever holds the Lease.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from headstart_operator.kube.client import Json, KubeClient, KubeError
from headstart_operator.kube.pools import API_VERSION, KIND

COMPONENT = "headstart-operator"

_REPEAT_S = 60.0
_FORGET_S = 3600.0

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _Told:
    """An event that the API has."""

    path: str
    count: int
    written_s: float


class EventRecorder:
    """`clock` is monotonic seconds; `now` is what people read."""

    def __init__(
        self,
        kube: KubeClient,
        *,
        namespace: str,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._instance = instance
        self._clock = clock
        self._now = now
        self._told: dict[tuple[str, str, str], _Told] = {}

    async def record(self, item: Json, reason: str, message: str, *, kind: Literal["Normal", "Warning"]) -> None:
        """Tell it of the EnginePool that `item` is. That the API does not take it is logged, and no more."""
        key = (str(item["metadata"].get("uid")), reason, message)
        self._told = {each: told for each, told in self._told.items() if self._age_s(told) < _FORGET_S}
        told = self._told.get(key)
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            if told is None:
                event = self._event(item, reason, message, kind=kind, now=now)
                await self._kube.request("POST", self._path, body=event)
                path = f"{self._path}/{event['metadata']['name']}"
                self._told[key] = _Told(path, count=1, written_s=self._clock())
                return
            told.count += 1
            if self._age_s(told) >= _REPEAT_S:
                told.written_s = self._clock()
                await self._kube.request("PATCH", told.path, body={"count": told.count, "lastTimestamp": now})
        except KubeError as error:
            self._told.pop(key, None)
            _LOGGER.warning("the event %s was not taken: %s", reason, error)

    def _age_s(self, told: _Told) -> float:
        return self._clock() - told.written_s

    def _event(self, item: Json, reason: str, message: str, *, kind: str, now: str) -> Json:
        metadata = item["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": self._namespace,
                "name": metadata["name"],
                "uid": metadata.get("uid"),
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
