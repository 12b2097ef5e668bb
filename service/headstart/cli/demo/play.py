"""Plays the scene against one pod through its real gRPC port. Decides nothing about the pod; prints nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import grpc.aio

from headstart.app.pod import Pod
from headstart.cli import client
from headstart.cli.demo.scene import (
    NAMES,
    NUM_TOKENS,
    QUESTION,
    SEED,
    SYSTEM,
    TEMPERATURE,
    Answer,
    Outcome,
    Pressure,
)
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.contract.proto import prefix_cache_pb2_grpc as cache_rpc

_FOREIGN_PROMPT_TOKENS = 320
_NUM_FOREIGN_PROMPTS = 2


async def play(pod: Pod, *, budget: int, tell: Callable[[str], None]) -> Outcome:
    """The scene, the pressure round, and each request alone and cold. `tell` gets a line before each part."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{pod.grpc_port}") as channel:
        player = _Player(pod, channel)
        model = await player.inference.GetModel(pb.GetModelRequest())
        prompts = {name: await player.tokenize(name) for name in NAMES}
        pod.engine.traces.clear()
        tell("A, B and C together: B while A decodes, C while A and B decode")
        together = await player.together()
        traces = tuple(pod.engine.traces)
        tell("a round of foreign prompts that the pool has no room for")
        pressure = await player.pressure(prompts)
        alone = {}
        for name in NAMES:
            tell(f"{name} alone, with an empty cache")
            await player.cache.Reset(cache_pb.ResetRequest(force=True))
            alone[name] = await player.ask(name)
        return Outcome(
            model=model.name,
            block_size=model.block_size,
            num_blocks=pod.num_blocks,
            budget=budget,
            prompts=prompts,
            together=together,
            alone=alone,
            traces=traces,
            pressure=pressure,
        )


class _Player:
    """Client stubs of one pod. Its state is the channel, owned by the caller."""

    def __init__(self, pod: Pod, channel: grpc.aio.Channel) -> None:
        self._pod = pod
        self.inference = rpc.InferenceStub(channel)
        self.cache = cache_rpc.PrefixCacheStub(channel)

    async def tokenize(self, name: str) -> tuple[int, ...]:
        response = await self.inference.Tokenize(pb.TokenizeRequest(chat=_chat(name)))
        return tuple(response.token_ids)

    async def together(self) -> dict[str, Answer]:
        """Each request starts once the one before it has its first token."""
        tasks = {}
        for name in NAMES:
            has_begun = asyncio.Event()
            tasks[name] = asyncio.create_task(self.ask(name, has_begun))
            await has_begun.wait()
        return {name: await task for name, task in tasks.items()}

    async def ask(self, name: str, has_begun: asyncio.Event | None = None) -> Answer:
        request = pb.GenerateRequest(
            request_id=name,
            chat=_chat(name),
            max_tokens=NUM_TOKENS[name],
            min_tokens=NUM_TOKENS[name],
            sampling=pb.Sampling(temperature=TEMPERATURE[name], seed=SEED),
        )
        try:
            return await self._run(request, has_begun)
        finally:
            if has_begun is not None:
                has_begun.set()

    async def pressure(self, prompts: dict[str, tuple[int, ...]]) -> Pressure:
        """Foreign prompts, of random token ids, that take more blocks than are free."""
        before = {name: await self._lookup(ids) for name, ids in prompts.items()}
        first_step = self._pod.engine.traces[-1].step
        numbers = random.Random(SEED)
        for _ in range(_NUM_FOREIGN_PROMPTS):
            ids = [numbers.randrange(1000, 20_000) for _ in range(_FOREIGN_PROMPT_TOKENS)]
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), max_tokens=1)
            await self._run(request, None)
        traces = [trace for trace in self._pod.engine.traces if trace.step > first_step]
        after = {name: await self._lookup(ids) for name, ids in prompts.items()}
        return Pressure(
            num_prompt_tokens=_NUM_FOREIGN_PROMPTS * _FOREIGN_PROMPT_TOKENS,
            num_evicted=sum(len(trace.evicted) for trace in traces),
            before=before,
            after=after,
            repeated=await self.ask("A"),
        )

    async def _lookup(self, ids: tuple[int, ...]) -> int:
        response = await self.cache.Lookup(cache_pb.LookupRequest(token_ids=ids))
        return int(response.matched_tokens)

    async def _run(self, request: pb.GenerateRequest, has_begun: asyncio.Event | None) -> Answer:
        text, token_ids, finished = "", [], pb.Finished()
        async for response in self.inference.Generate(request):
            if response.HasField("finished"):
                finished = response.finished
                continue
            text += response.chunk.text
            token_ids += response.chunk.token_ids
            if has_begun is not None:
                has_begun.set()
        return Answer(
            prompt_tokens=finished.usage.prompt_tokens,
            cached_tokens=finished.usage.cached_tokens,
            token_ids=tuple(token_ids),
            text=text,
            ttft_s=finished.timings.ttft_s,
        )


def _chat(name: str) -> pb.Chat:
    return pb.Chat(messages=[client.chat_message("system", SYSTEM), client.chat_message("user", QUESTION[name])])
