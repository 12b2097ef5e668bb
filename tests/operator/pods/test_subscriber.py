"""What is logged of a pod that is followed: one line when it goes, one when it is back, however often it is tried."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.pods.connection import insecure_channel
from headstart_operator.pods.replica import Resync
from headstart_operator.pods.subscriber import Subscriber
from operator_rig import start_simulated_pod

Changes = AsyncGenerator[tuple[str, ...], None]


async def _follow_until(changes: Changes, condition: Callable[[], bool]) -> None:
    async for _ in changes:
        if condition():
            return


async def _lose(subscriber: Subscriber, changes: Changes, *, num_tries: int) -> None:
    """Go on until the pod is gone and was tried so many times more."""
    await _follow_until(changes, lambda: not subscriber.is_live)
    for _ in range(num_tries):
        await anext(changes)


async def test_a_pod_that_goes_and_comes_back_is_told_of_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headstart_operator")
    pod = await start_simulated_pod("pod")
    port = pod.grpc_port
    address = f"127.0.0.1:{port}"
    ref = PodRef(name="pod", uid=address, address=address)
    async with insecure_channel(address) as channel:
        resyncs: Counter[Resync] = Counter()
        subscriber = Subscriber(ref, channel, PrefixIndex(), resyncs=resyncs)
        async with aclosing(subscriber.follow()) as changes:
            for _ in range(2):
                await _follow_until(changes, lambda: subscriber.is_live)
                await pod.stop()
                await _lose(subscriber, changes, num_tries=4)
                pod = await start_simulated_pod("pod", server__grpc_port=port)
            await _follow_until(changes, lambda: subscriber.is_live)
    await pod.stop()
    assert resyncs == {"epoch": 2}
    told = [record.getMessage() for record in caplog.records if record.name == "headstart_operator.pods.subscriber"]
    lost = f"pod pod: its stream ended with UNAVAILABLE ({address}: UNAVAILABLE: "
    assert [each.removeprefix(lost) != each for each in told] == [True, False] * 2
    assert told[1::2] == ["pod pod: followed again"] * 2


async def test_a_pod_that_cannot_be_reached_is_told_as_a_warning_with_the_reason_once_it_should_serve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headstart_operator")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with insecure_channel(address) as channel:
            ref = PodRef(name="pod", uid="u", address=address, is_ready=False)
            subscriber = Subscriber(ref, channel, PrefixIndex(), resyncs=Counter())
            async with aclosing(subscriber.follow()) as changes:
                await _lose(subscriber, changes, num_tries=3)
                subscriber.ref = replace(ref, is_ready=True)
                await _lose(subscriber, changes, num_tries=3)
    assert subscriber.failure.startswith("UNAVAILABLE: ")
    assert "Connection refused" in subscriber.failure
    assert address not in subscriber.failure
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    assert f"({address}: {subscriber.failure})" in caplog.text
