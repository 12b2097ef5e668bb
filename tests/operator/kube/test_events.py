"""Events: told once, counted when they come again, and never worth a failure."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from headstart_operator.kube.client import KubeClient, load_credentials
from headstart_operator.kube.events import EventRecorder
from support.kube_server import EVENTS, KubeServer

ITEM: dict[str, Any] = {"metadata": {"name": "chat", "uid": "u1"}}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def recording() -> AsyncIterator[tuple[KubeServer, EventRecorder, Clock]]:
    async with KubeServer() as server:
        kube, clock = KubeClient(lambda: load_credentials(server.url)), Clock()
        yield server, EventRecorder(kube, namespace="ns", instance="op-1", clock=clock), clock
        await kube.close()


async def test_an_event_says_what_happened_to_which_object() -> None:
    async with recording() as (server, events, _):
        await events.record(ITEM, "NoPods", "no pods", kind="Warning")
    (event,) = server.collections[EVENTS]
    assert event["involvedObject"] == {
        "apiVersion": "headstart.dev/v1alpha1",
        "kind": "EnginePool",
        "namespace": "ns",
        "name": "chat",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Warning", "NoPods", "no pods", 1)
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_the_same_again_is_counted_at_most_once_a_minute() -> None:
    async with recording() as (server, events, clock):
        for _ in range(5):
            await events.record(ITEM, "NoPods", "no pods", kind="Warning")
            clock.now_s += 1.0
        assert [method for method, _ in server.calls] == ["POST"]
        clock.now_s += 60.0
        await events.record(ITEM, "NoPods", "no pods", kind="Warning")
        await events.record(ITEM, "NoPods", "other words", kind="Warning")
    assert [event["count"] for event in server.collections[EVENTS]] == [6, 1]
    assert server.verbs() == {("create", "events"), ("patch", "events")}


async def test_an_event_that_is_not_taken_is_told_anew_next_time(caplog: pytest.LogCaptureFixture) -> None:
    async with recording() as (server, events, clock):
        server.refuse("POST", "/events", 403)
        with caplog.at_level(logging.WARNING):
            await events.record(ITEM, "NoPods", "no pods", kind="Warning")
        assert "NoPods" in caplog.text
        await events.record(ITEM, "NoPods", "no pods", kind="Warning")
        clock.now_s += 4000.0
        await events.record(ITEM, "NoPods", "no pods", kind="Warning")
    assert len(server.collections[EVENTS]) == 2
