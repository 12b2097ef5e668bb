"""All pods as one: follows discovery, keeps a subscriber for each pod, and answers where a prompt would be cheapest.

Pods are in one group when they agree on model, tokenizer and hash root. A pod is a candidate while it is ready, its
stream talks, its cache is known and it does not drain. Knows nothing of how requests travel or wait.
Owner of the index, the subscribers and the placements; everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import grpc.aio

from headstart_operator.decision.identity import GroupKey, PodKey, PodRef
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.pool import Pools
from headstart_operator.decision.routing import Routing
from headstart_operator.decision.score import Query, Ranked
from headstart_operator.decision.view import PodView
from headstart_operator.pods.connection import insecure_channel
from headstart_operator.pods.pod import FollowedPod, derive_root
from headstart_operator.pods.replica import Resync
from headstart_operator.pods.subscriber import SILENCE_S, Subscriber
from headstart_operator.supervisor import keep_running

PATIENCE_S = 5.0
"""How long readiness waits for snapshots after the first list of pods."""

COMING_BACK_S = 1.0
"""How long a pod whose stream broke off is waited for: when only the connection was lost, it is back much sooner."""

_SOON_S = 0.001
"""When a request is on its way to its pod, and there is time to note what the pod is about to compute."""

_LINGER_S = 3600.0
"""How long requests on a pod that discovery no longer names may go on; its own drain is shorter."""

_LOGGER = logging.getLogger(__name__)


class PodSource(Protocol):
    """Yields the whole set of pods, first as soon as it is known and then whenever it changes."""

    def follow(self) -> AsyncGenerator[frozenset[PodRef], None]: ...


@dataclass(slots=True, kw_only=True)
class FleetCounters:
    """`resyncs` by reason; `misfits` counts pods whose hash root the fleet secret does not give."""

    resyncs: Counter[Resync] = field(default_factory=Counter)
    misfits: int = 0


class Fleet:
    """`start` it, then ask. `fleet_secret` is what the pods mount as `cache.hash_seed`; `pools` says how each ranks."""

    def __init__(
        self,
        source: PodSource,
        *,
        fleet_secret: bytes = b"",
        pools: Pools | None = None,
        connect: Callable[[str], grpc.aio.Channel] = insecure_channel,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_prepared: Callable[[Collection[PodView]], bool] = lambda _views: True
        self._source = source
        self._secret = fleet_secret
        self._connect = connect
        self._silence_s = silence_s
        self._pods: dict[str, FollowedPod] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._has_listed = False
        self._task: asyncio.Task[None] | None = None
        self._views: tuple[PodView, ...] | None = None
        self._groups: tuple[GroupKey, ...] | None = None
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._pools = pools or Pools()
        self._routing = Routing(policy=self._pools.policy, clock=clock)
        self.counters = FleetCounters()

    # ---- life

    def start(self, *, is_prepared: Callable[[Collection[PodView]], bool] | None = None) -> None:
        """Begin to follow the pods. Readiness waits until what their requests need besides `is_prepared`, too."""
        self._is_prepared = is_prepared or self._is_prepared
        self._task = asyncio.create_task(keep_running(self._run, "following discovery"))

    async def close(self) -> None:
        """Stop following and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(self._let_go(pod) for pod in self._pods.values()))
        await asyncio.gather(*(pod.channel.close() for pod in self._pods.values()))
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._pods.clear()
        self._groups = None
        self._touch()

    @property
    def index(self) -> PrefixIndex:
        """Not to be changed: the pods' streams write it."""
        return self._routing.index

    @property
    def is_ready(self) -> bool:
        """From the first list and all that is needed of each ready pod on, or 5 s after the list. Never false again."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def check_ready(self) -> None:
        """Look whether it is ready by now, for what `is_prepared` tells may have changed."""
        if self._ready.is_set() or not self._has_listed:
            return
        wanted = [pod for pod in self._pods.values() if pod.is_wanted]
        if all(pod.subscriber.is_live for pod in wanted) and self._is_prepared(self.snapshot()):
            self._ready.set()

    async def changed(self) -> None:
        """Returns at the next change of any pod's load or state."""
        await self._changed.wait()

    # ---- questions

    def snapshot(self) -> tuple[PodView, ...]:
        """Every candidate, as of now."""
        self._routing.placements.expire()
        if self._views is None:
            self._views = tuple(pod.view for pod in self._pods.values() if pod.view is not None)
        return self._views

    def groups(self, model: str = "") -> tuple[GroupKey, ...]:
        """Groups with a candidate, the largest first; of one model when it is given."""
        if self._groups is None:
            sizes = Counter(view.group for view in self.snapshot())
            self._groups = tuple(group for group, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0])))
        return tuple(group for group in self._groups if model in ("", group.model))

    def refs(self) -> tuple[tuple[PodRef, PodView | None], ...]:
        """Every pod that was discovered, with its view when it is a candidate."""
        return tuple((pod.ref, pod.view) for pod in self._pods.values())

    def pods(self) -> tuple[FollowedPod, ...]:
        """Every pod that was discovered, as it is followed. Not to be changed."""
        return tuple(self._pods.values())

    def away(self) -> tuple[tuple[PodKey, GroupKey], ...]:
        """Pods that have said what they are and are no candidates now. They may be again."""
        return tuple(
            (pod.subscriber.replica.key, pod.group)
            for pod in self._pods.values()
            if pod.view is None and pod.group is not None
        )

    def is_expected(self, model: str) -> bool:
        """Whether a pod of this model, "" for any, may be back at any moment: its stream has just broken off."""
        since_s = asyncio.get_running_loop().time() - COMING_BACK_S
        return any(
            pod.lost_s > since_s and pod.is_wanted and pod.group is not None and model in ("", pod.group.model)
            for pod in self._pods.values()
        )

    def doubt(self, key: PodKey) -> None:
        """This pod did not let a request in. It is no candidate until its stream is let in anew."""
        pod = self._pods.get(key.uid)
        if pod is not None:
            pod.subscriber.ask_anew()
            self._touch_key(key)

    def hit_ratio(self, pool: str) -> float | None:
        """Share of prompt tokens that were cached, of the requests of this pool that ended lately; None before one."""
        return self._routing.hit_ratio(pool)

    def rank(
        self, group: GroupKey, query: Query, *, excluded: Collection[PodKey] = (), has_room: bool = False
    ) -> list[Ranked]:
        """A group's pods for this prompt, best first. `matched`, `turn` and the means are filled in here.

        With `has_room` only pods that may be given one more request are ranked.
        """
        views = [view for view in self.snapshot() if view.group == group and (view.has_room or not has_room)]
        if excluded:
            views = [view for view in views if view.key not in excluded]
        return self._routing.rank(query, views, self._pools.policy_of(group.pool))

    # ---- placements

    def place(self, request_id: str, ranked: Ranked, query: Query) -> None:
        """A request goes to this pod under this id. Raises ValueError for an id that is in use."""
        self._routing.place(request_id, ranked, query)
        asyncio.get_running_loop().call_later(_SOON_S, self.index.catch_up)
        self._touch_key(ranked.view.key)

    def settle(
        self, request_id: str, view: PodView, *, prompt_tokens: int = 0, cached_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """The request ended there. `prompt_tokens` is 0 when nothing is to be learnt from it, as after a failure."""
        self._routing.settle(
            request_id,
            view,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
        )
        self._touch_key(view.key)

    # ---- following

    async def _run(self) -> None:
        patience: asyncio.TimerHandle | None = None
        try:
            async with aclosing(self._source.follow()) as sets:
                async for refs in sets:
                    await self._take_set(refs)
                    if patience is None:
                        self._has_listed = True
                        patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._ready.set)
                    self.check_ready()
        finally:
            if patience is not None:
                patience.cancel()

    async def _take_set(self, refs: Collection[PodRef]) -> None:
        wanted = {ref.uid: ref for ref in refs}
        for uid, pod in list(self._pods.items()):
            ref = wanted.get(uid)
            if ref is None or ref.address != pod.ref.address:
                del self._pods[uid]
                await self._let_go(pod)
            else:
                pod.ref = pod.subscriber.ref = ref
                self._refresh(pod)
        for uid, ref in wanted.items():
            if uid not in self._pods:
                self._pods[uid] = self._take_on(ref)
        self._groups = None
        self._touch()

    def _take_on(self, ref: PodRef) -> FollowedPod:
        channel = self._connect(ref.address)
        subscriber = Subscriber(ref, channel, self.index, resyncs=self.counters.resyncs, silence_s=self._silence_s)
        pod = FollowedPod(ref, channel, subscriber, self._routing.placements)
        pod.task = asyncio.create_task(keep_running(partial(self._follow, pod), f"following pod {ref.name}"))
        return pod

    async def _let_go(self, pod: FollowedPod) -> None:
        """Nothing new goes there. What runs there may end, unless the fleet closes first."""
        if pod.task is not None:
            pod.task.cancel()
            await asyncio.gather(pod.task, return_exceptions=True)
        pod.subscriber.replica.drop()
        closing = asyncio.create_task(pod.channel.close(grace=_LINGER_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _follow(self, pod: FollowedPod) -> None:
        async with aclosing(pod.subscriber.follow()) as changes:
            async for accepted in changes:
                for request_id in accepted:
                    self._routing.placements.accept(request_id)
                self._learn_root(pod)
                self._refresh(pod)
                self._touch()
                self.check_ready()

    def _learn_root(self, pod: FollowedPod) -> None:
        """Once a process: whether the fleet secret gives its root, and whether it fits the rest of its model's pods."""
        hello = pod.subscriber.replica.hello
        if hello is None or hello.epoch == pod.root_epoch:
            return
        pod.root_epoch = hello.epoch
        pod.root = derive_root(hello, self._secret)
        if pod.root is None:
            self.counters.misfits += 1
            _LOGGER.warning("pod %s: its hash root is not that of this fleet secret; no prefix is found", pod.ref.name)
        others = {each.group for each in self._pods.values() if each.ref.pool == pod.ref.pool} - {pod.group}
        if any(group is not None and group.model == hello.model for group in others):
            self.counters.misfits += 1
            _LOGGER.warning("pod %s: tokenizer or hash root differ from other pods of %s", pod.ref.name, hello.model)

    # ---- bookkeeping

    def _touch_key(self, key: PodKey) -> None:
        pod = self._pods.get(key.uid)
        if pod is not None:
            self._refresh(pod)
        self._touch()

    def _refresh(self, pod: FollowedPod) -> None:
        """Its view is made anew; the groups are gathered anew only when it came or left."""
        before = pod.view
        pod.touch()
        if before is None or pod.view is None or before.group != pod.view.group:
            self._groups = None

    def _touch(self) -> None:
        """Wake whoever waits for a change; the views are gathered anew when they are asked for."""
        self._views = None
        self._changed.set()
        self._changed = asyncio.Event()
