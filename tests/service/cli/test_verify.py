"""How `headstart cache verify` asks many pods, some of which do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from headstart.cli.client import Access
from headstart.cli.verify import compare
from headstart.contract.proto import prefix_cache_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2_grpc as rpc
from headstart.contract.proto import router_pb2


class Router:
    """Knows pods that serve, and holds that they have nothing."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    def GetPods(self, request: router_pb2.GetPodsRequest, timeout: float) -> router_pb2.Pods:
        pods = [router_pb2.Pod(name=address, address=address, is_serving=True) for address in self._addresses]
        return router_pb2.Pods(pods=pods)

    def DumpIndex(self, request: router_pb2.DumpIndexRequest, timeout: float) -> Iterator[router_pb2.IndexChunk]:
        yield from ()


class Cache(rpc.PrefixCacheServicer):
    """A pod that holds nothing, and says so after `before`."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before
        self.num_asked = 0

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.CacheUpdate]:
        self.num_asked += 1
        self._before()
        yield pb.CacheUpdate(snapshot=pb.SnapshotChunk(last=True))


@contextmanager
def _serving(cache: Cache) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_PrefixCacheServicer_to_server(cache, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_pods_are_asked_side_by_side() -> None:
    both = threading.Barrier(2)
    with _serving(Cache(lambda: both.wait(20))) as one, _serving(Cache(lambda: both.wait(20))) as other:
        found = compare(Router(one, other), Access(), timeout=20, pod_timeout=10)  # type: ignore[arg-type]
    assert [(each.address, each.problem) for each in found] == [(one, ""), (other, "")]


def test_a_pod_that_hangs_is_given_up_once() -> None:
    released = threading.Event()
    hanging = Cache(lambda: released.wait(60))
    with _serving(hanging) as address:
        (found,) = compare(Router(address), Access(), timeout=20, pod_timeout=0.5)  # type: ignore[arg-type]
        released.set()
    assert (found.problem, hanging.num_asked) == ("not reached: DEADLINE_EXCEEDED", 1)
