"""`headstart cache verify`: the operator's index against what each pod truly holds.

The two are read one after the other, so under traffic they differ by what happened in between: a difference counts only
when it stays over several looks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from rich.console import Console
from rich.table import Table

from headstart.cli import client
from headstart.cli.snapshot import read_snapshot
from headstart.contract.proto import prefix_cache_pb2_grpc, router_pb2, router_pb2_grpc

_LOOKS = 5
_PAUSE_S = 0.3
_TIMEOUT_S = 10.0
_POD_TIMEOUT_S = 5.0
_MAX_AT_ONCE = 64  # pods that are asked side by side
_LOST = "lost"  # of Pod.state


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pod. `stale` hashes are in the index only, `missing` ones on the pod only, in every look so far."""

    pod: str
    address: str
    num_held: int
    stale: frozenset[int]
    missing: frozenset[int]
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        return not (self.is_open or self.problem)

    @property
    def is_open(self) -> bool:
        """Another look may show that the difference was news on its way."""
        return bool(self.stale or self.missing)


def run_verify(endpoint: str, access: client.Access, *, timeout: float | None, is_json: bool) -> int:
    """Print the comparison; exit code 0 when all pods are known exactly, 1 otherwise.

    `access` is for the operator and for its pods.
    """

    def verify() -> int:
        with client.open_channel(endpoint, access) as channel:
            router = router_pb2_grpc.RouterStub(channel)
            results = compare(router, access, timeout=timeout or _TIMEOUT_S, pod_timeout=timeout or _POD_TIMEOUT_S)
        _show(results, is_json=is_json)
        return 0 if results and all(result.is_equal for result in results) else 1

    hint = "is it a pod? Use `headstart cache show`, or --endpoint of a router"
    return client.report_failure(verify, endpoint, not_offered=hint)


def compare(
    router: router_pb2_grpc.RouterStub,
    access: client.Access,
    *,
    timeout: float,
    pod_timeout: float = _POD_TIMEOUT_S,
    looks: int = _LOOKS,
) -> list[Comparison]:
    """Every pod that serves, and those that should and that the operator does not reach; `access` is for the pods.

    Pods are asked side by side; one that has not answered within `pod_timeout` seconds is not asked again.
    Raises RpcError when the operator does not answer.
    """
    known = router.GetPods(router_pb2.GetPodsRequest(), timeout=timeout).pods
    lost = [_unreached(pod, "not connected") for pod in known if pod.state == _LOST]
    pods = [pod for pod in known if pod.is_serving]
    results: dict[str, Comparison] = {}
    for look in range(looks):
        pending = [pod for pod in pods if pod.address not in results or results[pod.address].is_open]
        if not pending:
            break
        if look:
            time.sleep(_PAUSE_S)
        index = _read_index(router, timeout)
        with ThreadPoolExecutor(min(len(pending), _MAX_AT_ONCE)) as threads:
            found = threads.map(lambda pod, index=index: _compare_pod(pod, access, index, pod_timeout), pending)
            for now in found:
                results[now.address] = _narrowed(now, results.get(now.address))
    return [*(results[pod.address] for pod in pods), *lost]


def _narrowed(now: Comparison, before: Comparison | None) -> Comparison:
    """What differed in both looks: the rest was news on its way."""
    if before is None or now.problem:
        return now
    return Comparison(now.pod, now.address, now.num_held, now.stale & before.stale, now.missing & before.missing)


def _compare_pod(
    pod: router_pb2.Pod, access: client.Access, index: Mapping[str, set[int]], timeout: float
) -> Comparison:
    indexed = index.get(pod.uid, set())
    try:
        with client.open_channel(pod.address, access) as channel:
            held = set(read_snapshot(prefix_cache_pb2_grpc.PrefixCacheStub(channel), timeout).parents)
    except grpc.RpcError as error:
        return _unreached(pod, f"not reached: {error.code().name}")
    return Comparison(pod.name, pod.address, len(held), frozenset(indexed - held), frozenset(held - indexed))


def _unreached(pod: router_pb2.Pod, problem: str) -> Comparison:
    return Comparison(pod.name, pod.address, 0, frozenset(), frozenset(), problem)


def _read_index(router: router_pb2_grpc.RouterStub, timeout: float) -> dict[str, set[int]]:
    """Pod uid -> hashes."""
    uids: list[str] = []
    index: dict[str, set[int]] = {}
    for chunk in router.DumpIndex(router_pb2.DumpIndexRequest(), timeout=timeout):
        uids.extend(chunk.uids)
        for entry in chunk.entries:
            for number in entry.pods:
                index.setdefault(uids[number], set()).add(entry.hash)
    return index


def _show(results: list[Comparison], *, is_json: bool) -> None:
    rows = [
        (each.pod, each.address, each.num_held, len(each.stale), len(each.missing), each.problem) for each in results
    ]
    if is_json:
        names = ("pod", "address", "held", "stale", "missing", "problem")
        print(json.dumps({"pods": [dict(zip(names, row, strict=True)) for row in rows]}))
        return
    table = Table(title="the operator's index against its pods")
    for name in ("pod", "address", "blocks held", "stale in the index", "missing in the index", "verdict"):
        # Pods of one machine differ in the port alone.
        table.add_column(name, no_wrap=name == "address")
    for result, row in zip(results, rows, strict=True):
        verdict = result.problem or ("exact" if result.is_equal else "DIFFERS")
        table.add_row(*(str(value) for value in row[:-1]), verdict)
    Console().print(table)
    if not results:
        print("the operator knows no pod that serves")
