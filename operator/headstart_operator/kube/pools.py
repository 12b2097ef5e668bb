"""The EnginePools of a namespace, and the pods of all of them as one set.

Each pool that can be read has its pods followed; one that cannot is kept with the reason, for its status. A pod that
two pools select belongs to the one whose name comes first. One pool that is sure to come back keeps its pods while it
is gone. Knows nothing of streams, routing or who writes.
Owner of its state: the task that runs `follow`; others only read `pools`, `objects` and `problems`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from headstart_operator.decision.admission import QueueLimits
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.pool import Pool
from headstart_operator.decision.score import Policy
from headstart_operator.kube.client import Json, KubeClient
from headstart_operator.kube.informer import SILENCE_S, Informer
from headstart_operator.kube.pods import KubernetesPods
from headstart_operator.kube.selector import selector_text
from headstart_operator.supervisor import keep_running

API_VERSION = "headstart.dev/v1alpha1"
KIND = "EnginePool"
DEFAULT_PORT = 50051

PATIENCE_S = 5.0
"""How long the first set of pods waits for the pods of every pool."""

_LIMITS = {
    "maxQueuedRequests": "max_requests",
    "maxQueuedTokens": "max_tokens",
    "maxQueuedPerTenant": "max_requests_per_tenant",
}

_NO_LIMIT = (1 << 63) - 1

_LOGGER = logging.getLogger(__name__)


def pools_path(namespace: str) -> str:
    """Of the collection."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/enginepools"


class KubernetesPools:
    """`selector` finds the pools themselves, all of the namespace when it is "".

    `lasting` names the pool that is made again whenever it is removed: meanwhile it is followed as it was. "" for none.
    """

    def __init__(
        self, kube: KubeClient, *, namespace: str, selector: str = "", lasting: str = "", silence_s: float = SILENCE_S
    ) -> None:
        self._kube = kube
        self.namespace = namespace
        self._lasting = lasting
        self._silence_s = silence_s
        self._informer = Informer(
            kube, pools_path(namespace), selector=selector, read=lambda item: item, silence_s=silence_s
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refs: dict[str, frozenset[PodRef]] = {}
        self._changed = asyncio.Event()
        self._has_waited = False
        self.has_listed = False
        self.objects: dict[str, Json] = {}
        """Every pool as the API has it, by name."""
        self.pools: dict[str, Pool] = {}
        """Those that are followed, by name."""
        self.problems: dict[str, str] = {}
        """What is wrong with the others."""

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        """Never ends. The first set waits for the pods of every pool, or 5 s."""
        watching = asyncio.create_task(keep_running(self._follow_pools, "following EnginePools"))
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._has_waited or (self.has_listed and self._refs.keys() >= self.pools.keys()):
                    self._has_waited = True
                    yield self._merged()
        finally:
            tasks = [watching, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()

    def takers(self, name: str) -> tuple[str, ...]:
        """Pools that have pods which this one's selector finds too."""
        found = {ref.uid for ref in self._refs.get(name, ())}
        owners = {ref.uid: ref.pool for ref in self._merged()}
        return tuple(sorted({owners[uid] for uid in found} - {name}))

    def _merged(self) -> frozenset[PodRef]:
        by_uid: dict[str, PodRef] = {}
        for name in sorted(self._refs):
            for ref in self._refs[name]:
                by_uid.setdefault(ref.uid, ref)
        return frozenset(by_uid.values())

    async def _follow_pools(self) -> None:
        async with aclosing(self._informer.follow()) as sets:
            async for found in sets:
                if not self.has_listed:
                    self.has_listed = True
                    asyncio.get_running_loop().call_later(PATIENCE_S, self._end_patience)
                await self._take({str(item["metadata"]["name"]): item for item in found.values()})
                self._changed.set()

    def _end_patience(self) -> None:
        self._has_waited = True
        self._changed.set()

    async def _take(self, objects: Mapping[str, Json]) -> None:
        self.objects = dict(objects)
        known_problems = dict(self.problems)
        self.problems.clear()
        pools: dict[str, Pool] = {}
        for name, item in objects.items():
            try:
                pools[name] = parse_pool(item)
            except ValueError as error:
                self.problems[name] = str(error)
                if self.problems[name] != known_problems.get(name):
                    _LOGGER.warning("EnginePool %s is not followed: %s", name, error)
        if self._lasting in self.pools and self._lasting not in objects:
            pools[self._lasting] = self.pools[self._lasting]
        for name, old in self.pools.items():
            new = pools.get(name)
            if new is None or _whom(new) != _whom(old):
                await self._stop(name, forget=new is None)
        self.pools.clear()
        self.pools.update(pools)
        for name, pool in pools.items():
            if name not in self._tasks:
                following = keep_running(partial(self._follow_pods, pool), f"following the pods of EnginePool {name}")
                self._tasks[name] = asyncio.create_task(following)

    async def _stop(self, name: str, *, forget: bool) -> None:
        """What a pool that changes selected stays until its pods are listed anew."""
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if forget:
            self._refs.pop(name, None)

    async def _follow_pods(self, pool: Pool) -> None:
        source = KubernetesPods(self._kube, pool, namespace=self.namespace, silence_s=self._silence_s)
        async with aclosing(source.follow()) as sets:
            async for refs in sets:
                self._refs[pool.name] = refs
                self._changed.set()


def parse_pool(item: Json) -> Pool:
    """Raises ValueError that names the field, for what the resource's schema would have refused."""
    spec = item.get("spec") or {}
    try:
        selector = selector_text(spec.get("selector") or {})
    except ValueError as error:
        raise ValueError(f"spec.selector: {error}") from None
    policy = (spec.get("routing") or {}).get("policy", Policy.PREFIX)
    if policy not in list(Policy):
        raise ValueError(f"spec.routing.policy: {policy!r} is none of {', '.join(Policy)}")
    model = spec.get("model", "")
    if not isinstance(model, str):
        raise ValueError("spec.model: not a text")
    return Pool(
        name=item["metadata"]["name"],
        selector=selector,
        port=_number(spec.get("port", DEFAULT_PORT), "spec.port", least=1, most=65_535),
        model=model,
        policy=Policy(policy),
        limits=_limits(spec.get("limits")),
    )


def _limits(limits: Any) -> QueueLimits | None:
    """What is not said is not bounded here: the operator's own limits hold besides."""
    if not limits:
        return None
    given = {
        ours: _number(limits.get(theirs, _NO_LIMIT), f"spec.limits.{theirs}", least=0, most=_NO_LIMIT)
        for theirs, ours in _LIMITS.items()
    }
    return QueueLimits(**given)


def _number(value: Any, field: str, *, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{field}: {value!r} is no number from {least} to {most}")
    return value


def _whom(pool: Pool) -> tuple[str, int, str]:
    """What decides which pods are followed, and as what."""
    return pool.selector, pool.port, pool.model
