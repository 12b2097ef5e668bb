"""Two pods and a router as programs of their own, and the clients that ask them. Prints nothing.

Owner of the programs: whoever opened the `Programs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import grpc
import grpc.aio

from headstart.cli import client
from headstart.cli.demo.fleet_scene import Round, Served
from headstart.cli.demo.programs import Program, Programs
from headstart.cli.demo.tenants import QUESTIONS, instructions, turns
from headstart.cli.verify import compare
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.contract.proto import prefix_cache_pb2_grpc as cache_rpc
from headstart.contract.proto import router_pb2, router_pb2_grpc

# Three tenants' prefixes of 22 blocks and some room: the fleet has room for all six, but only once each.
NUM_BLOCKS = 84
BLOCK_SIZE = 16
_MAX_LEN = 768
# The first token is what is measured. More would let the pods' decode speeds, which on a busy machine differ by chance,
# have a say in where a tenant's prefix goes.
_NUM_TOKENS = 1
_TIMEOUT_S = 60.0
_NEWS_S = 5.0
_LOOK_S = 0.02

Tell = Callable[[str], None]
Show = Callable[[Sequence[Served]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What runs, ready for requests."""

    pods: tuple[Program, ...]
    router: Program

    @property
    def ended(self) -> tuple[str, ...]:
        """The names of those that run no more."""
        return tuple(each.name for each in (*self.pods, self.router) if not each.is_running)


async def start_fleet(programs: Programs, *, model: str | None, tell: Tell) -> Fleet:
    """Pods a and b, then the router that follows them. Raises ConfigError with the words of what does not start."""
    tell("two pods start")
    given = ("--model", model) if model else ()
    sizes = {"--num-gpu-blocks-override": NUM_BLOCKS, "--block-size": BLOCK_SIZE, "--max-model-len": _MAX_LEN}
    flags = [word for flag, value in sizes.items() for word in (flag, str(value))]
    pods = [
        await programs.start(f"pod {name}", "serve", "--device", "cpu", *flags, *given, environment={"POD_NAME": name})
        for name in ("a", "b")
    ]
    await asyncio.gather(*(pod.wait_ready() for pod in pods))
    tell("the router starts and reads what they hold")
    router = await programs.start("the router", "route", "--endpoints", ",".join(pod.address for pod in pods))
    await router.wait_ready()
    return Fleet(pods=tuple(pods), router=router)


async def play(programs: Sequence[Program], show: Show) -> Round:
    """All requests, each to the next of the `programs` in turn, from empty caches.

    One after the other, so that nobody waits for another's work. `show` gets those so far whenever one has ended.
    """
    served: list[Served] = []
    channels = [grpc.aio.insecure_channel(program.address) for program in programs]
    try:
        for number, (tenant, question) in enumerate(turns()):
            turn = number % len(programs)
            one = await _ask(rpc.InferenceStub(channels[turn]), tenant, question)
            served.append(one if one.pod else replace(one, pod=programs[turn].name.removeprefix("pod ")))
            show(served)
    finally:
        for channel in channels:
            await channel.close()
    return Round(served=tuple(served))


async def _ask(stub: rpc.InferenceStub, tenant: str, question: int) -> Served:
    request = pb.GenerateRequest(
        chat=pb.Chat(
            messages=[
                client.chat_message("system", instructions(tenant)),
                client.chat_message("user", QUESTIONS[question]),
            ]
        ),
        max_tokens=_NUM_TOKENS,
        sampling=pb.Sampling(temperature=0.0, seed=0),
        cache_salt=tenant,
    )
    token_ids: list[int] = []
    finished = pb.Finished()
    started_s, ttft_s = time.perf_counter(), 0.0
    try:
        async for response in stub.Generate(request, timeout=_TIMEOUT_S):
            ttft_s = ttft_s or time.perf_counter() - started_s
            token_ids += response.chunk.token_ids
            if response.HasField("finished"):
                finished = response.finished
    except grpc.aio.AioRpcError as error:
        return Served(tenant=tenant, question=question, problem=f"{error.code().name}: {error.details()}")
    is_routed = finished.HasField("route")
    return Served(
        tenant=tenant,
        question=question,
        pod=finished.route.pod,
        prompt_tokens=finished.usage.prompt_tokens,
        cached_tokens=finished.usage.cached_tokens,
        predicted_tokens=finished.route.predicted_cached_tokens if is_routed else None,
        token_ids=tuple(token_ids),
        ttft_s=ttft_s,
    )


async def empty(fleet: Fleet) -> None:
    """Let the pods forget what they hold, and the router hear of it. What does not answer is told of by the checks."""
    for pod in fleet.pods:
        async with grpc.aio.insecure_channel(pod.address) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await cache_rpc.PrefixCacheStub(channel).Reset(cache_pb.ResetRequest(force=True), timeout=_TIMEOUT_S)
    async with grpc.aio.insecure_channel(fleet.router.address) as channel:
        router = router_pb2_grpc.RouterStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(_NEWS_S):
                while any(pod.index_blocks for pod in (await router.GetPods(router_pb2.GetPodsRequest())).pods):
                    await asyncio.sleep(_LOOK_S)


async def inexact_pods(router: Program) -> tuple[str, ...] | None:
    """Those whose blocks the router does not know exactly; None when it does not answer."""
    return await asyncio.to_thread(_compare, router)


def _compare(router: Program) -> tuple[str, ...] | None:
    access = client.Access()
    try:
        with client.open_channel(router.address, access) as channel:
            results = compare(router_pb2_grpc.RouterStub(channel), access, timeout=_TIMEOUT_S)
    except grpc.RpcError:
        return None
    return tuple(each.pod for each in results if not each.is_equal)
