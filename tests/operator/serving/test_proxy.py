"""Requests through an operator to simulated pods: routed, retried, continued, refused, and always ended once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.edge.prompts import PromptReader
from headstart.telemetry.signals import Signals
from operator_rig import Answer, Rig, generate, prompt, rig, until

_STEP = {"runner__step_seconds": 0.02}


def _request(start: int = 1, length: int = 64, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=prompt(start, length), **{"max_tokens": 4, **fields})


async def _settled(rig: Rig) -> None:
    """Nothing is left in flight, here or on any pod."""
    await until(lambda: not rig.operator.balancer.num_running)
    await until(lambda: all(not view.num_in_flight for view in rig.operator.fleet.snapshot()))
    await until(lambda: all(not pod.engine.stats.running for pod in rig.pods))


async def _expected(rig: Rig, request: pb.GenerateRequest, *, pod: int = 0) -> Answer:
    """What a pod alone answers."""
    async with grpc.aio.insecure_channel(rig.address(pod)) as channel:
        return await generate(rpc.InferenceStub(channel), request)


def _sample(signals: Signals, name: str) -> float:
    lines = signals.exposition().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def _stop_busy_pod(rig: Rig) -> str:
    """The name of the only pod that had a request."""
    (busy,) = [view for view in rig.operator.fleet.snapshot() if view.num_in_flight]
    await rig.pod(busy.name).stop()
    return busy.name


async def test_a_request_is_answered_with_the_receipt_of_its_route() -> None:
    async with rig() as r:
        answer = await generate(r.stub, _request())
        finished = answer.finished[0]
        assert len(answer.token_ids[0]) == 4
        assert finished.finish_reason == pb.FINISH_REASON_LENGTH
        assert finished.route.candidates == 2
        assert answer.trailers["headstart-pod"] == finished.route.pod
        assert answer.trailers["headstart-predicted-cached-tokens"] == "0"
        assert answer.trailers["headstart-prompt-tokens"] == "64"
        await _settled(r)


async def test_a_prefix_is_followed_to_its_pod_and_the_hit_is_foretold() -> None:
    # Prefill takes time here, so that a pod that a busy machine held up is not cheaper without the prefix.
    async with rig(3, runner__token_seconds=0.002) as r:
        first = await generate(r.stub, _request(length=64, max_tokens=1))
        home = first.finished[0].route.pod
        for extra in range(1, 4):
            request = _request(length=64, max_tokens=1)
            request.token_ids.ids.extend([extra] * 20)
            finished = (await generate(r.stub, request)).finished[0]
            assert finished.route.pod == home
            assert finished.route.matched_blocks == 4
            assert finished.route.predicted_cached_tokens == finished.usage.cached_tokens == 64


class AnyPrompt(PromptReader):
    """Reads every text and chat as the same ids, for pods that have no tokenizer."""

    async def read(self, request: pb.GenerateRequest | pb.TokenizeRequest) -> Sequence[int]:
        return await super().read(request) if request.WhichOneof("prompt") == "token_ids" else range(1, 65)


async def test_pods_count_a_chat_as_one_though_they_get_its_ids_and_take_no_clients_word() -> None:
    chat = pb.Chat(messages=[pb.Message(role="user", content=[pb.ContentPart(text="hello")])])
    async with rig(1) as r:
        texts = r.operator.balancer._catalog._texts
        texts[""] = replace(texts[""], prompts=AnyPrompt(None, None))
        await generate(r.stub, pb.GenerateRequest(chat=chat, max_tokens=4))
        for _ in range(2):
            await generate(r.stub, _request(), metadata=(("headstart-operation", "chat"),))
        name = 'gen_ai_server_request_duration_seconds_count{gen_ai_operation_name="'
        for signals in (r.pods[0].signals, r.operator.signals):
            assert [_sample(signals, name + kind) for kind in ("chat", "text_completion")] == [1, 2]


async def test_all_choices_end_once_and_carry_the_route() -> None:
    async with rig() as r:
        answer = await generate(r.stub, _request(n=3))
        assert sorted(answer.finished) == [0, 1, 2]
        assert all(finished.route.pod for finished in answer.finished.values())


async def test_a_refusal_names_the_field_and_costs_no_pod_anything() -> None:
    async with rig(1) as r:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(r.stub, pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1 << 30]), max_tokens=1))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (detail,) = rpc_status.from_call(refusal.value).details
        violation = error_details_pb2.BadRequest()
        detail.Unpack(violation)
        assert violation.field_violations[0].field == "token_ids"
        assert len((await generate(r.stub, _request())).token_ids[0]) == 4


async def test_an_unknown_model_is_not_found_and_several_need_a_name() -> None:
    async with rig(1) as r:
        told = "model: 'another' is not served here; served: 'simulated'"
        with pytest.raises(grpc.aio.AioRpcError, match=told) as refusal:
            await generate(r.stub, _request(model="another"))
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert len((await generate(r.stub, _request(model="simulated"))).token_ids[0]) == 4


async def test_text_without_a_tokenizer_is_refused() -> None:
    async with rig(1) as r:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(r.stub, pb.GenerateRequest(text="x", max_tokens=1))
        assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_running_id_is_refused_and_free_again_afterwards() -> None:
    async with rig(**_STEP) as r:
        first = asyncio.create_task(generate(r.stub, _request(request_id="mine", max_tokens=20)))
        await until(lambda: r.operator.balancer.num_running)
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: 'mine' is still running") as refusal:
            await generate(r.stub, _request(request_id="mine"))
        assert refusal.value.code() is grpc.StatusCode.ALREADY_EXISTS
        await first
        await generate(r.stub, _request(request_id="mine"))


async def test_an_id_may_be_used_again_while_a_pod_still_breaks_off_its_cancelled_request() -> None:
    async with rig(1, **_STEP) as r:
        for _ in range(3):
            first = r.stub.Generate(_request(request_id="x" * 120, max_tokens=1000))
            await first.read()
            first.cancel()
            await until(lambda: not r.operator.balancer.num_running)
            assert len((await generate(r.stub, _request(request_id="x" * 120))).token_ids[0]) == 4
        await _settled(r)


async def test_a_stopped_pod_is_continued_elsewhere_to_the_same_tokens() -> None:
    async with rig(**_STEP) as r:
        request = _request(max_tokens=40, n=2)
        expected = await _expected(r, request)
        await _expected(r, _request(length=32), pod=1)
        await until(lambda: all(r.operator.fleet.index.held(view.key) for view in r.operator.fleet.snapshot()))
        call = r.stub.Generate(request, timeout=30)
        answer = Answer()
        first = await call.read()
        answer.take(first)
        busy = await _stop_busy_pod(r)
        await answer.read(call)
        cached_tokens = {"pod-0": 63, "pod-1": 32}[busy]
        assert dict(await call.trailing_metadata())["headstart-cached-tokens"] == str(cached_tokens)
        assert answer.token_ids == expected.token_ids
        for index in (0, 1):
            finished = answer.finished[index]
            assert finished.finish_reason == pb.FINISH_REASON_LENGTH
            assert finished.usage.completion_tokens == 40
            assert finished.usage.prompt_tokens == 64
            assert finished.usage.cached_tokens == cached_tokens
            assert finished.route.pod != busy
        assert r.operator.balancer.num_running == 0


async def test_a_choice_that_has_its_end_hears_no_more_when_another_is_continued() -> None:
    async with rig(**_STEP) as r:
        whole = await _expected(r, _request(max_tokens=20))
        ends = pb.Resume(choices=[{"token_ids": whole.token_ids[0][:19]}, {}])
        call = r.stub.Generate(_request(max_tokens=20, n=2, resume=ends), timeout=30)
        answer = Answer()
        while 0 not in answer.finished:
            answer.take(await call.read())
        await _stop_busy_pod(r)
        await answer.read(call)  # takes nothing of a choice that has ended
        assert answer.token_ids == {0: whole.token_ids[0][19:], 1: whole.token_ids[0]}
        assert {each.usage.completion_tokens for each in answer.finished.values()} == {20}


async def test_a_choice_that_lacks_only_its_end_gets_it_and_no_token() -> None:
    async with rig() as r:
        whole = await generate(r.stub, _request(max_tokens=5))
        answer = await generate(
            r.stub, _request(max_tokens=5, resume=pb.Resume(choices=[{"token_ids": whole.token_ids[0]}]))
        )
        assert answer.token_ids == {}
        assert answer.finished[0].usage.completion_tokens == 5


async def test_with_no_pod_left_a_begun_stream_ends_once_and_unavailable() -> None:
    async with rig(1, **_STEP) as r:
        call = r.stub.Generate(_request(max_tokens=200, n=2), timeout=30)
        answer = Answer()
        answer.take(await call.read())
        await r.pods[0].stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await answer.read(call)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert sorted(answer.finished) == [0, 1]
        assert {each.finish_reason for each in answer.finished.values()} == {pb.FINISH_REASON_CANCELLED}
        await until(lambda: not r.operator.fleet.snapshot())
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(r.stub, _request())
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_ends_that_a_stopping_router_makes_tell_when_the_first_token_came() -> None:
    async with rig(1, **_STEP) as r:
        call = r.stub.Generate(_request(max_tokens=200, n=2), timeout=30)
        answer = Answer()
        answer.take(await call.read())
        r.operator.proxy.close()
        with pytest.raises(grpc.aio.AioRpcError, match="the operator is stopping"):
            await answer.read(call)
        assert sorted(answer.finished) == [0, 1]
        assert all(0.0 < each.timings.ttft_s < 30.0 for each in answer.finished.values())


async def test_when_every_pod_refuses_the_client_learns_when_to_come_back() -> None:
    async with (
        rig(2, scheduler__max_num_seqs=1, limits__max_queued_requests=1, **_STEP) as r,
        AsyncExitStack() as stack,
    ):
        others = []
        for index, pod in enumerate(r.pods):  # somebody else's requests fill them: one runs, one waits
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(r.address(index)))
            for start in (1, 2):
                others.append(rpc.InferenceStub(channel).Generate(_request(start, max_tokens=2000)))
                await until(lambda pod=pod, start=start: pod.engine.stats.running + pod.engine.stats.waiting == start)
        with pytest.raises(grpc.aio.AioRpcError, match="queue of this pod is full") as refusal:
            await generate(r.stub, _request())
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "grpc-retry-pushback-ms" in dict(refusal.value.trailing_metadata())
        for call in others:
            call.cancel()
        await _settled(r)


async def test_before_the_first_token_the_next_pod_takes_over_unseen() -> None:
    async with rig(2, **_STEP) as r:
        await generate(r.stub, _request())  # so that the catalog knows its pods
        await r.pods[0].server._server.stop(None)
        answers = await asyncio.gather(*(generate(r.stub, _request(start)) for start in range(6)))
        assert {answer.finished[0].route.pod for answer in answers} == {"pod-1"}


async def test_a_client_that_leaves_frees_its_pod() -> None:
    async with rig(1, **_STEP) as r:
        call = r.stub.Generate(_request(max_tokens=1000), timeout=30)
        await call.read()
        call.cancel()
        await _settled(r)


async def test_a_deadline_ends_the_request_everywhere() -> None:
    async with rig(1, **_STEP) as r:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await generate(r.stub, _request(max_tokens=1000), timeout=0.3)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await _settled(r)


async def test_more_than_a_pod_runs_waits_here() -> None:
    async with rig(1, scheduler__max_num_seqs=4, **_STEP) as r:
        tasks = [asyncio.create_task(generate(r.stub, _request(start, max_tokens=8))) for start in range(12)]
        await until(lambda: r.operator.balancer.num_waiting == 7)
        assert [view.num_in_flight for view in r.operator.fleet.snapshot()] == [5]
        assert all(len(answer.token_ids[0]) == 8 for answer in await asyncio.gather(*tasks))
        await _settled(r)


async def test_a_client_goes_on_after_its_own_operator_died() -> None:
    async with rig() as r:
        whole = await generate(r.stub, _request(max_tokens=10))
        rest = _request(max_tokens=10, resume=pb.Resume(choices=[{"token_ids": whole.token_ids[0][:6]}]))
        answer = await generate(r.stub, rest)
        assert answer.token_ids[0] == whole.token_ids[0][6:]
        assert answer.finished[0].usage.completion_tokens == 10


async def _break_off(call: Any) -> int:
    for _ in range(5):
        await call.read()
    call.cancel()
    return 5


async def _let_it_expire(call: Any) -> int:
    answer = Answer()
    with pytest.raises(grpc.aio.AioRpcError):
        await answer.read(call)
    return len(answer.token_ids[0])


@pytest.mark.parametrize(("leave", "timeout_s"), [(_break_off, 30.0), (_let_it_expire, 0.5)])
async def test_a_request_that_is_broken_off_is_counted_once_here_and_on_its_pod(leave: Any, timeout_s: float) -> None:
    async with rig(1, **_STEP) as r:
        num_read = await leave(r.stub.Generate(_request(max_tokens=1000), timeout=timeout_s))
        await _settled(r)
        for signals in (r.operator.signals, r.pods[0].signals):
            await until(lambda: _sample(signals, 'headstart_finished_choices_total{finished_reason="cancelled"}') == 1)  # noqa: B023
            assert _sample(signals, "headstart_generated_tokens_total") >= num_read
            assert _sample(signals, "headstart_prompt_tokens_total") == 64


async def test_a_request_that_is_broken_off_while_it_waits_for_a_pod_is_counted_too() -> None:
    async with rig(1, scheduler__max_num_seqs=1, **_STEP) as r:
        running = [r.stub.Generate(_request(n, max_tokens=1000)) for n in (1, 2)]
        await until(lambda: r.operator.balancer.num_running == 2)
        num_ahead = r.operator.balancer.num_waiting
        waiting = r.stub.Generate(_request(3, n=2))
        await until(lambda: r.operator.balancer.num_waiting == num_ahead + 1)
        waiting.cancel()
        cancelled = 'headstart_finished_choices_total{finished_reason="cancelled"}'
        await until(lambda: _sample(r.operator.signals, cancelled) == 2)
        assert _sample(r.operator.signals, "headstart_prompt_tokens_total") == 64
        for call in running:
            call.cancel()
        await _settled(r)


async def test_the_echo_of_a_prompt_comes_once() -> None:
    async with rig(**_STEP) as r:
        call = r.stub.Generate(_request(max_tokens=20, echo_token_ids=True), timeout=30)
        answer = Answer()
        for _ in range(2):
            answer.take(await call.read())
        await _stop_busy_pod(r)
        await answer.read(call)
        echoed = [i for message in answer.messages for i in message.chunk.prompt_token_ids]
        assert echoed == list(prompt(1, 64).ids)
        assert len(answer.token_ids[0]) == 20


async def test_what_pods_say_of_their_model_is_said_here_too() -> None:
    async with rig(1) as r:
        model = await r.stub.GetModel(pb.GetModelRequest())
        assert model.name == "simulated"
        assert [each.name for each in await r.operator.proxy.models()] == ["simulated"]
        messages = [message async for message in r.operator.proxy.generate(_request())]
        assert messages[-1].finished.route.pod == "pod-0"


async def test_a_pod_of_another_hash_root_serves_too_and_its_cache_is_not_guessed() -> None:
    async with rig(first={"cache__hash_seed": "another fleet"}) as r:
        first = await generate(r.stub, _request())
        assert first.finished[0].route.candidates == 2
        answers = [await generate(r.stub, _request()) for _ in range(6)]
        routes = [answer.finished[0].route for answer in answers]
        assert all(route.matched_blocks == 0 for route in routes if route.pod == "pod-0")
        assert all(answer.token_ids == first.token_ids for answer in answers)


async def test_two_models_are_told_apart_by_name() -> None:
    async with rig(first={"model__served_name": "other"}) as r:
        with pytest.raises(grpc.aio.AioRpcError, match="several models are served here"):
            await generate(r.stub, _request())
        assert (await generate(r.stub, _request(model="other"))).finished[0].route.pod == "pod-0"
        assert (await generate(r.stub, _request(model="simulated"))).finished[0].route.pod == "pod-1"
        assert [model.name for model in await r.operator.proxy.models()] == ["other", "simulated"]
        assert (await r.stub.GetModel(pb.GetModelRequest(model="other"))).name == "other"
        with pytest.raises(grpc.aio.AioRpcError, match="several models are served here"):
            await r.stub.GetModel(pb.GetModelRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="the pods have no tokenizer"):
            _ = [chunk async for chunk in r.stub.GetTokenizer(pb.GetTokenizerRequest(model="simulated"))]


async def test_a_slow_reader_slows_its_own_stream_only() -> None:
    async with rig(1) as r:
        slow = r.stub.Generate(_request(1, max_tokens=2000), timeout=60)
        slow_answer = Answer()
        slow_answer.take(await slow.read())
        assert len((await generate(r.stub, _request(2, max_tokens=500))).token_ids[0]) == 500
        await slow_answer.read(slow)
        assert len(slow_answer.token_ids[0]) == 2000
