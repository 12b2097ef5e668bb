"""Pods and an operator in processes of their own: what clients see when pods die, hang or come back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import router_pb2, router_pb2_grpc
from operator_rig import Answer, generate, prompt
from support.program import Program

_NUM_TOKENS = 150


def _pod(name: str, port: int = 0) -> Program:
    return Program("serve", "--runner", "simulated", port=port, POD_NAME=name, HEADSTART_RUNNER__STEP_SECONDS="0.02")


@pytest.fixture
def pods() -> Iterator[dict[str, Program]]:
    names = ("a", "b", "c")
    with ThreadPoolExecutor() as threads:
        found = dict(zip(names, threads.map(_pod, names), strict=True))
    try:
        yield found
    finally:
        for pod in found.values():
            pod.close()


@pytest.fixture
def operator(pods: dict[str, Program]) -> Iterator[Program]:
    program = Program("route", "--endpoints", ",".join(pod.address for pod in pods.values()))
    try:
        yield program
    finally:
        program.close()


def _request(start: int) -> pb.GenerateRequest:
    sampling = pb.Sampling(temperature=0.8, seed=start)
    return pb.GenerateRequest(token_ids=prompt(start, 48), max_tokens=_NUM_TOKENS, sampling=sampling)


async def _expected(pod: Program, starts: range) -> list[list[int]]:
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub = rpc.InferenceStub(channel)
        answers = await asyncio.gather(*(generate(stub, _request(start)) for start in starts))
        return [answer.token_ids[0] for answer in answers]


async def _begun(stub: rpc.InferenceStub, starts: range) -> list[tuple[grpc.aio.UnaryStreamCall, Answer]]:
    """Streams that have all had their first message."""
    calls = [(stub.Generate(_request(start), timeout=60), Answer()) for start in starts]
    for call, answer in calls:
        answer.take(await call.read())
    return calls


async def _busiest(channel: grpc.aio.Channel) -> str:
    pods = (await router_pb2_grpc.RouterStub(channel).GetPods(router_pb2.GetPodsRequest())).pods
    return max(pods, key=lambda pod: pod.in_flight).name


async def _finish(calls: list[tuple[grpc.aio.UnaryStreamCall, Answer]]) -> list[list[int]]:
    await asyncio.gather(*(answer.read(call) for call, answer in calls))
    assert all(answer.finished[0].finish_reason == pb.FINISH_REASON_LENGTH for _, answer in calls)
    return [answer.token_ids[0] for _, answer in calls]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
async def test_streams_of_a_lost_pod_go_on_to_their_full_text(
    pods: dict[str, Program], operator: Program, number: int
) -> None:
    starts = range(16)
    expected = await _expected(pods["a"], starts)
    async with grpc.aio.insecure_channel(operator.address) as channel:
        calls = await _begun(rpc.InferenceStub(channel), starts)
        lost = await _busiest(channel)
        pods[lost].signal(number)
        assert await _finish(calls) == expected
        moved = [answer for _, answer in calls if answer.finished[0].route.pod != lost]
        assert len(moved) == len(calls)


async def test_without_pods_requests_are_refused_at_once_and_served_when_one_is_back(
    pods: dict[str, Program], operator: Program
) -> None:
    async with grpc.aio.insecure_channel(operator.address) as channel:
        stub = rpc.InferenceStub(channel)
        before = await generate(stub, _request(1))
        for pod in pods.values():
            pod.close()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(stub, _request(1), timeout=5)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        home = before.finished[0].route.pod
        pods[home] = await asyncio.to_thread(_pod, home, pods[home].port)
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    after = await generate(stub, _request(1), timeout=5)
                    break
                await asyncio.sleep(0.05)
        # Another process at the same address: what the earlier one held is not believed of it.
        assert after.finished[0].route.predicted_cached_tokens == 0
        assert after.token_ids == before.token_ids
