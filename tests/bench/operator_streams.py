"""What the router adds to a stream: time before its first token, and processor time a message.

Real programs on loopback, pods without weights. A bare proxy of the same gRPC library, which only hands bytes on, runs
beside the router: nothing in Python can be faster than it. Router and bare proxy have one core, everybody else the
others. Owner of the programs: the context that starts them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
from headstart.cli.demo.programs import Program, Programs
from headstart.contract.proto import inference_pb2 as pb

METHOD = "/headstart.v1.Inference/Generate"
VOCAB_SIZE = 40_000
_TIMEOUT_S = 120.0
_POD_SETTINGS = {
    "HEADSTART_RUNNER__TOKEN_SECONDS": "0",
    "HEADSTART_CACHE__NUM_BLOCKS": "100000",  # nothing is evicted: steps without time would evict without measure
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A way to a pod. `pid` is the process in between, None when there is none."""

    name: str
    channel: grpc.aio.Channel
    pid: int | None = None

    def busy_s(self) -> float:
        """Processor time that the process in between has used, with all its threads."""
        if self.pid is None:
            return 0.0
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return 1e-9 * sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


class FirstToken(NamedTuple):
    """Seconds to the first message, and what the process in between used until the last one."""

    wall_s: float
    busy_s: float


class Flow(NamedTuple):
    """Streamed messages over one hop: how many, how long it took, and what the process in between used."""

    num_messages: int
    wall_s: float
    busy_s: float


@asynccontextmanager
async def hops(*, step_s: float, num_pods: int = 2) -> AsyncIterator[list[Hop]]:
    """Direct, through the bare proxy, and through the router. The pods' steps take `step_s`."""
    environment = _POD_SETTINGS | {"HEADSTART_RUNNER__STEP_SECONDS": str(step_s)}
    cores = sorted(os.sched_getaffinity(0))
    others = set(cores[1:]) or set(cores)
    os.sched_setaffinity(0, others)  # children inherit it
    async with Programs() as programs:
        pods = [
            await programs.start(f"pod {number}", "serve", "--runner", "simulated", environment=environment)
            for number in range(num_pods)
        ]
        for pod in pods:
            await pod.wait_ready()
        router = await programs.start("the router", "route", "--endpoints", ",".join(pod.address for pod in pods))
        await router.wait_ready()
        _pin(router.process.pid, cores[0])
        bare, port = await _start_bare(pods)
        _pin(bare.pid, cores[0])
        try:
            yield [
                Hop(name="direct", channel=_channel(pods[0].address)),
                Hop(name="bare", channel=_channel(f"127.0.0.1:{port}"), pid=bare.pid),
                Hop(name="router", channel=_channel(router.address), pid=router.process.pid),
            ]
        finally:
            bare.kill()
            await bare.wait()


async def first_tokens(
    ways: list[Hop], *, num_tokens: int, is_known: bool, rounds: int, progress: Callable[[float], None]
) -> dict[str, list[FirstToken]]:
    """By hop: each round asks over every hop, one after the other. Of a known prompt all but the last ids were sent
    before; what pods store of a new one comes to the router while the prompt is under way, for steps take no time.
    """
    choose = random.Random(num_tokens)
    known = [choose.randrange(VOCAB_SIZE) for _ in range(num_tokens)]
    asked: dict[str, list[FirstToken]] = {hop.name: [] for hop in ways}
    for number in range(-4, rounds):  # the first ones open connections and fill caches
        for hop in ways:
            kept = known[:-8] if is_known else []
            one = await _ask(hop, _request(choose, num_tokens - len(kept), max_tokens=1, kept=kept))
            if number >= 0:
                asked[hop.name].append(one)
        progress(max(0, number + 1) / rounds)
    return asked


async def _ask(hop: Hop, raw: bytes) -> FirstToken:
    started_s, busy_s = time.perf_counter(), hop.busy_s()
    call = hop.channel.unary_stream(METHOD)(raw, timeout=_TIMEOUT_S)
    await call.read()
    elapsed_s = time.perf_counter() - started_s
    while await call.read() is not grpc.aio.EOF:
        pass
    return FirstToken(elapsed_s, hop.busy_s() - busy_s)


async def flow(hop: Hop, *, num_streams: int, num_tokens: int, seed: int) -> Flow:
    """So many streams at once, to their ends."""
    choose = random.Random(seed)
    requests = [_request(choose, 32, max_tokens=num_tokens) for _ in range(num_streams)]
    started_s, busy_s = time.perf_counter(), hop.busy_s()
    counts = await asyncio.gather(*(_count(hop, raw) for raw in requests))
    return Flow(sum(counts), time.perf_counter() - started_s, hop.busy_s() - busy_s)


async def _count(hop: Hop, raw: bytes) -> int:
    count = 0
    async for _ in hop.channel.unary_stream(METHOD)(raw, timeout=_TIMEOUT_S):
        count += 1
    return count


def _request(choose: random.Random, num_tokens: int, *, max_tokens: int, kept: Sequence[int] = ()) -> bytes:
    """A prompt of the `kept` ids and so many new ones."""
    ids = [*kept, *(choose.randrange(VOCAB_SIZE) for _ in range(num_tokens))]
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), max_tokens=max_tokens, ignore_eos=True)
    return request.SerializeToString()


def _channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


def _pin(pid: int, core: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def per_message_us(flows: list[Flow]) -> float:
    """Processor time of the process in between; the median of the rounds."""
    return 1e6 * statistics.median(each.busy_s / each.num_messages for each in flows)


# ---- the bare proxy, a process of its own


async def _start_bare(pods: list[Program]) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *(pod.address for pod in pods)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def _serve_bare(addresses: list[str]) -> None:
    channels = itertools.cycle([_channel(address) for address in addresses])

    async def generate(raw: bytes, context: Any) -> None:
        async for message in next(channels).unary_stream(METHOD)(raw):
            await context.write(message)

    service, _, method = METHOD[1:].partition("/")
    handlers = {method: grpc.unary_stream_rpc_method_handler(generate)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)  # ends with whoever started it


if __name__ == "__main__":
    asyncio.run(_serve_bare(sys.argv[1:]))
