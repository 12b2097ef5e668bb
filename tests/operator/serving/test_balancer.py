"""Which pods may take a request: as its length, its field's bounds and what it brings along decide."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import router_pb2_grpc
from headstart.edge.prompts import PromptReader
from headstart.errors import UnavailableError
from headstart.telemetry.signals import Signals
from operator_rig import Rig, generate, prompt, rig, until


def _request(start: int = 1, length: int = 64, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=prompt(start, length), **{"max_tokens": 4, **fields})


def _num_learnt(signals: Signals) -> float:
    """Of how many requests it was learnt whether what was foretold came true."""
    begin = 'headstart_route_predicted_minus_actual_tokens_bucket{le="+Inf"} '
    (line,) = [line for line in signals.exposition().decode().splitlines() if line.startswith(begin)]
    return float(line.removeprefix(begin))


class AnyPrompt(PromptReader):
    """Reads every text as the same 64 ids, for pods that have no tokenizer."""

    async def read(self, request: pb.GenerateRequest | pb.TokenizeRequest) -> Sequence[int]:
        return range(1, 65)


def _read_any_text(r: Rig) -> None:
    texts = r.operator.balancer._catalog._texts
    texts[""] = replace(texts[""], prompts=AnyPrompt(None, None))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 17}, "n: must be at most 16"),
        ({"prompt_logprobs": 21}, "prompt_logprobs: must be at most 20"),
        ({"n": 1 << 30}, "n: must be at most 16"),
        ({"logprobs": 1000}, "logprobs: must be at most 20"),
        ({"stop_strings": ["."] * 1025}, "stop_strings: 1025 entries; at most 16"),
    ],
)
async def test_what_no_pod_takes_is_refused_by_the_limits_of_the_most_generous(
    fields: dict[str, Any], words: str
) -> None:
    async with rig(2, first={"limits__max_n": 16}) as r:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(r.stub, _request(**fields))
        assert refusal.value.details() == words
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_missing_seed_is_drawn_here_so_that_the_request_can_go_on_elsewhere() -> None:
    async with rig(1) as r:
        job = await r.operator.balancer.read(_request())
        assert job.readings[0].request.sampling.HasField("seed")
        assert job.readings[0].request.request_id


async def test_of_output_that_a_client_brings_along_nothing_is_foretold_and_nothing_learnt() -> None:
    async with rig(1) as r:
        whole = await generate(r.stub, _request(length=76, max_tokens=40))
        await until(lambda: r.operator.fleet.index.num_blocks() >= 7)
        seen = r.operator.fleet.hit_ratio("")
        assert _num_learnt(r.operator.signals) == 1
        for num_resumed in (36, 40):
            resume = pb.Resume(choices=[{"token_ids": whole.token_ids[0][:num_resumed]}])
            request = _request(length=76, max_tokens=40, resume=resume)
            explained = await router_pb2_grpc.RouterStub(r.channel).Explain(request)
            answer = await generate(r.stub, request)
            route = answer.finished[0].route
            assert (route.predicted_cached_tokens, answer.trailers["headstart-predicted-cached-tokens"]) == (76, "76")
            assert {each.predicted_cached_tokens for each in (explained.route, *explained.ranked)} == {76}
        await until(lambda: not r.operator.balancer.num_running)
        assert _num_learnt(r.operator.signals) == 1
        assert r.operator.fleet.hit_ratio("") == seen == 0.0


async def test_a_request_too_long_for_all_groups_is_told_the_most_that_fits_any() -> None:
    long = {"cache__hash_seed": "another fleet", "model__max_len": 200}
    async with rig(3, first=long, model__max_len=100) as r:
        assert (await generate(r.stub, _request(length=150))).finished[0].route.pod == "pod-0"
        with pytest.raises(grpc.aio.AioRpcError, match="at most 199 fit"):
            await generate(r.stub, _request(length=300))


async def test_a_text_goes_to_the_groups_that_it_fits_though_all_share_a_tokenizer() -> None:
    short = {"cache__hash_seed": "another fleet", "model__max_len": 50}
    async with rig(3, first=short, model__max_len=70) as r:
        _read_any_text(r)
        job = await r.operator.balancer.read(pb.GenerateRequest(text="64 ids", max_tokens=4))
        assert {ranked.view.name for ranked in r.operator.balancer.explain(job)} == {"pod-1", "pod-2"}
    async with rig(3, first=short, model__max_len=60) as r:
        _read_any_text(r)
        with pytest.raises(grpc.aio.AioRpcError, match="text: the prompt has 64 tokens; at most 59 fit"):
            await generate(r.stub, pb.GenerateRequest(text="64 ids", max_tokens=4))


@pytest.mark.parametrize(
    ("fields", "num_candidates"),
    [
        ({"length": 98}, 1),  # and 4 more
        ({"length": 90, "min_tokens": 20, "max_tokens": 500}, 1),
        ({"length": 90, "max_tokens": 500, "resume": pb.Resume(choices=[{"token_ids": [1] * 20}])}, 1),
        ({"length": 90, "max_tokens": 50}, 1),
        ({"length": 90, "max_tokens": 500}, 2),  # neither gives as many
        ({"length": 96}, 2),
    ],
)
async def test_pods_of_one_group_whose_context_is_too_short_are_no_candidates(
    fields: dict[str, Any], num_candidates: int
) -> None:
    async with rig(2, first={"model__max_len": 100}, model__max_len=200) as r:
        assert len(r.operator.fleet.groups()) == 1
        job = await r.operator.balancer.read(_request(**fields))
        names = [ranked.view.name for ranked in r.operator.balancer.explain(job)]
        assert (len(names), "pod-1" in names) == (num_candidates, True)
        answers = await asyncio.gather(*(generate(r.stub, _request(start, 150, n=2)) for start in range(4)))
        assert {each.finished[0].route.pod for each in answers} == {"pod-1"}


async def test_what_no_pod_has_room_for_is_refused_in_the_words_of_the_longest_and_does_not_wait_for_it() -> None:
    async with rig(2, first={"model__max_len": 100}, model__max_len=200) as r:
        with pytest.raises(grpc.aio.AioRpcError, match="min_tokens: 60 tokens; the prompt leaves room for 50"):
            await generate(r.stub, _request(length=150, min_tokens=60, max_tokens=90))
        job = await r.operator.balancer.read(_request(length=150))
        await r.pods[1].stop()
        with pytest.raises(UnavailableError, match="of this length"):
            await r.operator.balancer.admit(job, deadline_s=None)
