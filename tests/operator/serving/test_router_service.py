"""What the operator says of itself, and `headstart cache verify`, which checks it against the pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from headstart.cli import main
from headstart.cli.client import Access
from headstart.cli.verify import Comparison, compare
from headstart.contract.proto import inference_pb2, router_pb2, router_pb2_grpc
from operator_rig import Rig, generate, prompt, rig, until


def _router(r: Rig) -> Any:
    return router_pb2_grpc.RouterStub(r.channel)


async def _fill(r: Rig) -> None:
    """Some blocks on both pods, and the index told of them."""
    for start in range(8):
        await generate(r.stub, inference_pb2.GenerateRequest(token_ids=prompt(start, 64), max_tokens=1))
    await until(lambda: r.operator.fleet.index.num_blocks() == 8 * 4)


async def test_explain_says_what_generate_then_does_and_runs_nothing() -> None:
    async with rig() as r:
        request = inference_pb2.GenerateRequest(token_ids=prompt(1, 70), max_tokens=1)
        await generate(r.stub, request)
        await until(lambda: r.operator.fleet.index.num_blocks() == 4)
        told = await _router(r).Explain(request)
        assert (told.prompt_tokens, told.prompt_blocks) == (70, 4)
        assert [each.matched_blocks for each in told.ranked] == [4, 0]
        assert told.ranked[0].cost_s <= told.ranked[1].cost_s
        assert all(each.has_room for each in told.ranked)
        assert all(not view.num_in_flight for view in r.operator.fleet.snapshot())
        route = (await generate(r.stub, request)).finished[0].route
        assert (route.pod, route.matched_blocks) == (told.route.pod, told.route.matched_blocks)


async def test_what_this_build_does_not_know_is_refused_by_every_call() -> None:
    newer = b"\xd8\x3e\x01"  # field 1003
    calls = {"Router": ("Explain", "GetPods", "DumpIndex"), "Inference": ("GetModel", "GetTokenizer", "Tokenize")}
    async with rig(1) as r:
        body = {
            "Explain": inference_pb2.GenerateRequest(token_ids=prompt(1, 4)),
            "Tokenize": inference_pb2.TokenizeRequest(text="x"),
        }
        for service, names in calls.items():
            for name in names:
                raw = (body[name].SerializeToString() if name in body else b"") + newer
                call = r.channel.unary_stream(f"/headstart.v1.{service}/{name}")(raw)
                with pytest.raises(grpc.aio.AioRpcError, match="#1003: a field that this build does not know"):
                    await call.read()


async def test_the_dump_is_the_union_of_the_pods() -> None:
    async with rig() as r:
        await _fill(r)
        pods = {pod.uid: pod for pod in (await _router(r).GetPods(router_pb2.GetPodsRequest())).pods}
        uids: list[str] = []
        counts: dict[str, int] = dict.fromkeys(pods, 0)
        async for chunk in _router(r).DumpIndex(router_pb2.DumpIndexRequest()):
            uids.extend(chunk.uids)
            for entry in chunk.entries:
                for number in entry.pods:
                    counts[uids[number]] += 1
        assert counts == {uid: pod.index_blocks for uid, pod in pods.items()}
        assert sum(counts.values()) == 32
        assert {pod.name for pod in pods.values()} == {"pod-0", "pod-1"}
        assert all(pod.is_serving and pod.group.startswith("simulated/") for pod in pods.values())


async def test_an_unknown_pod_is_not_found() -> None:
    async with rig(1) as r:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            async for _ in _router(r).DumpIndex(router_pb2.DumpIndexRequest(uid="nobody")):
                pass
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_verify_finds_an_exact_index_exact_and_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    async with rig() as r:
        await _fill(r)
        command = ["cache", "verify", "--json", "--endpoint", f"127.0.0.1:{r.operator.grpc_port}"]
        assert await asyncio.to_thread(main, command) == 0
        shown = json.loads(capsys.readouterr().out)["pods"]
        assert [(each["stale"], each["missing"]) for each in shown] == [(0, 0), (0, 0)]
        assert sum(each["held"] for each in shown) == 32


async def test_verify_names_a_pod_that_should_serve_and_is_not_connected(capsys: pytest.CaptureFixture[str]) -> None:
    async with rig() as r:
        await r.pods[1].stop()
        await until(lambda: len(r.operator.fleet.snapshot()) == 1)
        states = {pod.address: pod.state for pod in (await _router(r).GetPods(router_pb2.GetPodsRequest())).pods}
        assert states == {r.address(0): "candidate", r.address(1): "lost"}
        command = ["cache", "verify", "--json", "--endpoint", f"127.0.0.1:{r.operator.grpc_port}"]
        assert await asyncio.to_thread(main, command) == 1
        shown = json.loads(capsys.readouterr().out)["pods"]
        assert [(each["address"], each["problem"]) for each in shown] == [
            (r.address(0), ""),
            (r.address(1), "not connected"),
        ]


async def test_the_table_shows_addresses_whole_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    async with rig() as r:
        command = ["cache", "verify", "--endpoint", f"127.0.0.1:{r.operator.grpc_port}"]
        assert await asyncio.to_thread(main, command) == 0
        printed = capsys.readouterr().out
        assert all(r.address(index) in printed for index in range(2))


class ForgetfulRouter:
    """An operator whose index lacks one hash of one pod and has one too many."""

    def __init__(self, stub: Any) -> None:
        self.GetPods = stub.GetPods
        self._stub = stub

    def DumpIndex(self, request: router_pb2.DumpIndexRequest, timeout: float) -> Iterator[router_pb2.IndexChunk]:
        for chunk in self._stub.DumpIndex(request, timeout=timeout):
            if chunk.entries:
                chunk.entries[0].hash += 1
            yield chunk


async def test_verify_names_what_is_stale_and_what_is_missing() -> None:
    async with rig(1) as r:
        await _fill(r)

        def look() -> list[Comparison]:
            with grpc.insecure_channel(f"127.0.0.1:{r.operator.grpc_port}") as channel:
                router = ForgetfulRouter(router_pb2_grpc.RouterStub(channel))
                return compare(router, Access(), timeout=5, looks=2)

        (found,) = await asyncio.to_thread(look)
        assert not found.is_equal
        assert (found.num_held, len(found.stale), len(found.missing)) == (32, 1, 1)
