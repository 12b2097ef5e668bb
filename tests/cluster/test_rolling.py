"""Routers that are replaced while clients keep their connections, and what those clients notice: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from cluster import kube, releases
from cluster.releases import Release
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc

_NUM_CLIENTS = 4
_DELAY_S = 6


@pytest.fixture(scope="module")
def release(namespace: str) -> Iterator[Release]:
    installed = Release(namespace)
    releases.install(installed, {"server": {"drain": {"delaySeconds": _DELAY_S, "timeoutSeconds": 20}}})
    yield installed
    releases.uninstall(installed)


def test_clients_on_open_connections_notice_nothing_when_the_routers_are_replaced(release: Release) -> None:
    deployment = f"deployment/{release.name}-operator"
    old = {kube.name_of(pod) for pod in release.pods("operator")}
    is_over = threading.Event()

    def ask_on_one_connection(number: int) -> int:
        count = 0
        with grpc.insecure_channel(release.address) as channel:
            stub = rpc.InferenceStub(channel)
            while not is_over.is_set():
                request = pb.GenerateRequest(text=f"Count from {number}:", max_tokens=3)
                messages = list(stub.Generate(request, timeout=30))
                assert messages
                count += 1
        return count

    with ThreadPoolExecutor() as pool:
        clients = [pool.submit(ask_on_one_connection, number) for number in range(_NUM_CLIENTS)]
        try:
            kube.run("rollout", "restart", deployment, f"--namespace={release.namespace}")
            kube.run("rollout", "status", deployment, f"--namespace={release.namespace}", "--timeout=100s")
            kube.until(
                "the old routers to be gone", lambda: old.isdisjoint(map(kube.name_of, release.pods("operator")))
            )
        finally:
            is_over.set()
        # Each was at work all the while, and more than once a second of the delay.
        assert min(client.result() for client in clients) > _DELAY_S
