"""What is known of a pool's pods, and how pools decide what their pods are for, over real streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from headstart.app.pod import Pod
from headstart.contract.events import Stored
from headstart_operator.decision.admission import QueueLimits
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.pool import Pool, Pools
from headstart_operator.decision.score import Policy, Query
from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.survey import PoolSurvey, survey_pool
from operator_rig import start_simulated_pod, until

_SEED = {"cache__hash_seed": "other"}


class Found:
    """A source of pods that are all there from the start."""

    def __init__(self, *refs: PodRef) -> None:
        self._refs = frozenset(refs)

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        yield self._refs


def _ref(name: str, pod: Pod, **more: Any) -> PodRef:
    return PodRef(uid=f"uid-{name}", name=name, address=f"127.0.0.1:{pod.grpc_port}", **more)


@contextlib.asynccontextmanager
async def pods(*overrides: dict[str, Any]) -> AsyncIterator[list[Pod]]:
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for number, each in enumerate(overrides):
            started.append(await start_simulated_pod(f"pod-{number}", **each))
            stack.push_async_callback(started[-1].stop)
        yield started


@contextlib.asynccontextmanager
async def following(*refs: PodRef, pools: Pools | None = None) -> AsyncIterator[Fleet]:
    fleet = Fleet(Found(*refs), pools=pools)
    fleet.start()
    try:
        await fleet.wait_ready()
        await until(lambda: all(pod.group is not None for pod in fleet.pods() if pod.is_wanted))
        yield fleet
    finally:
        await fleet.close()


async def test_only_the_pools_own_pods_are_counted_and_those_not_ready_are_no_candidates() -> None:
    async with pods({}, {}) as (a, b):
        refs = (
            _ref("a", a, pool="chat"),
            _ref("gone", a, pool="chat", is_ready=False),
            _ref("b", b, pool="code"),
        )
        async with following(*refs) as fleet:
            key = next(view.key for view in fleet.snapshot() if view.name == "pod-0")
            fleet.index.apply(key, [Stored(1, 0), Stored(2, 1)])
            chat = survey_pool(fleet, "chat")
            assert (chat.num_total, chat.num_ready, chat.cached_blocks) == (2, 1, 2)
            assert survey_pool(fleet, "none") == PoolSurvey()


async def test_a_pod_of_another_secret_or_model_is_named() -> None:
    async with pods({}, _SEED, {"model__served_name": "m2"}) as (a, b, c):
        refs = [_ref(name, pod, pool="chat", model="simulated") for name, pod in (("a", a), ("b", b), ("c", c))]
        async with following(*refs) as fleet:
            found = survey_pool(fleet, "chat")
            assert (found.unknown_root, found.other_model, found.apart) == (("b",), ("c",), ())
            assert found.num_ready == 2
            assert {view.group.model for view in fleet.snapshot()} == {"simulated"}


async def test_pods_that_share_no_prefixes_with_most_of_their_pool_are_apart() -> None:
    async with pods({}, {}, {"cache__block_size": 32}) as (a, b, c):
        refs = [_ref(name, pod, pool="chat") for name, pod in (("a", a), ("b", b), ("c", c))]
        async with following(*refs) as fleet:
            assert survey_pool(fleet, "chat").apart == ("c",)
            assert fleet.counters.misfits > 0
        one_each = [_ref("a", a, pool="chat"), _ref("c", c, pool="long")]
        async with following(*one_each) as fleet:
            assert (survey_pool(fleet, "chat").apart, survey_pool(fleet, "long").apart) == ((), ())
            assert fleet.counters.misfits == 0


async def test_a_pod_is_out_of_step_until_its_snapshot_came_and_wrong_digests_are_counted() -> None:
    async with pods({}) as (a,), following(_ref("a", a, pool="chat")) as fleet:
        assert survey_pool(fleet, "chat").out_of_step == ()
        (pod,) = fleet.pods()
        fleet.index.apply(pod.subscriber.replica.key, [Stored(1, 0)])
        await until(lambda: survey_pool(fleet, "chat").digest_resyncs == {"a": 1})
        await until(lambda: survey_pool(fleet, "chat").out_of_step == ())
        assert survey_pool(fleet, "chat").cached_blocks == 0
        pod.subscriber.replica.forget_position()
        assert survey_pool(fleet, "chat").out_of_step == ("a",)


async def test_a_pod_that_should_serve_and_does_not_talk_is_named_with_its_address_and_the_reason() -> None:
    async with pods({}) as (a,):
        nowhere = PodRef(uid="uid-b", name="b", address="127.0.0.1:1", pool="chat")
        unready = PodRef(uid="uid-c", name="c", address="127.0.0.1:1", pool="chat", is_ready=False)
        fleet = Fleet(Found(_ref("a", a, pool="chat"), nowhere, unready))
        fleet.start()
        try:
            await until(lambda: survey_pool(fleet, "chat").num_ready == 1)
            await until(lambda: all(pod.subscriber.failure for pod in fleet.pods() if pod.ref.name != "a"))
            (said,) = survey_pool(fleet, "chat").unreached
        finally:
            await fleet.close()
    assert said.startswith("b (127.0.0.1:1): UNAVAILABLE: ")


async def test_the_hit_ratio_is_that_of_the_pools_own_requests() -> None:
    async with pods({}, {}) as (a, b), following(_ref("a", a, pool="chat"), _ref("b", b, pool="code")) as fleet:
        assert survey_pool(fleet, "chat").hit_ratio is None
        view = next(view for view in fleet.snapshot() if view.group.pool == "chat")
        fleet.settle("r", view, prompt_tokens=100, cached_tokens=75, output_tokens=1)
        assert survey_pool(fleet, "chat").hit_ratio == 0.75
        assert survey_pool(fleet, "code").hit_ratio is None


async def test_each_pool_ranks_by_its_own_policy_also_when_it_changes() -> None:
    async with pods({}, {}) as (a, b):
        by_name: dict[str, Pool] = {}
        refs = [_ref(name, pod, pool="chat") for name, pod in (("a", a), ("b", b))]
        async with following(*refs, pools=Pools(by_name=by_name)) as fleet:
            (group,) = fleet.groups()
            held = next(view.key for view in fleet.snapshot() if view.name == "pod-0")
            fleet.index.reserve(held, [7])
            query = Query(prompt_tokens=16, max_tokens=1, hashes=[7])

            def best() -> list[str]:
                found = []
                for turn in range(4):
                    ranked = fleet.rank(group, query)[0]
                    fleet.place(f"r{turn}", ranked, query)
                    fleet.settle(f"r{turn}", ranked.view)
                    found.append(ranked.view.name)
                return found

            fleet.index.apply(held, [Stored(7, 0)])
            assert best() == ["pod-0"] * 4
            by_name["chat"] = Pool(name="chat", selector="a=b", port=1, policy=Policy.ROUND_ROBIN)
            assert sorted(best()) == ["pod-0", "pod-0", "pod-1", "pod-1"]


def test_pods_of_no_pool_follow_the_operators_own_policy_and_have_no_limits_of_their_own() -> None:
    limits = QueueLimits(max_requests=1)
    chat = Pool(name="chat", selector="a=b", port=1, policy=Policy.ROUND_ROBIN, limits=limits)
    pools = Pools(by_name={"chat": chat}, policy=Policy.LEAST_LOADED)
    assert (pools.policy_of("chat"), pools.policy_of("")) == (Policy.ROUND_ROBIN, Policy.LEAST_LOADED)
    assert (pools.limits_of("chat"), pools.limits_of("")) == (limits, None)
