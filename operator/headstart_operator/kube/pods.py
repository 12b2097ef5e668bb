"""The pods of a Kubernetes namespace by selector, as whole sets. Knows nothing of streams or routing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.pool import Pool
from headstart_operator.kube.client import Json, KubeClient
from headstart_operator.kube.informer import SILENCE_S, Informer

_ENDED_PHASES = ("Failed", "Succeeded")


class KubernetesPods:
    """The pods of `pool` in `namespace`."""

    def __init__(self, kube: KubeClient, pool: Pool, *, namespace: str, silence_s: float = SILENCE_S) -> None:
        self._informer = Informer(
            kube,
            f"/api/v1/namespaces/{namespace}/pods",
            selector=pool.selector,
            read=lambda item: pod_ref(item, pool),
            silence_s=silence_s,
        )

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        """Never ends; while the API cannot be reached the last set stands."""
        async with aclosing(self._informer.follow()) as sets:
            async for found in sets:
                yield frozenset(found.values())


def pod_ref(item: Json, pool: Pool) -> PodRef | None:
    """None for a pod without an address of its own: not scheduled yet, or ended, as after an eviction."""
    metadata, status = item.get("metadata") or {}, item.get("status") or {}
    ip = status.get("podIP")
    if not ip or status.get("phase") in _ENDED_PHASES:
        return None
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return PodRef(
        uid=metadata["uid"],
        name=metadata.get("name") or metadata["uid"],
        address=f"[{ip}]:{pool.port}" if ":" in ip else f"{ip}:{pool.port}",
        is_ready=conditions.get("Ready") == "True",
        is_terminating=bool(metadata.get("deletionTimestamp")),
        labels=metadata.get("labels") or {},
        pool=pool.name,
        model=pool.model,
    )
