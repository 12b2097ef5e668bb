"""Whether somebody who asks for the whole cache delays a step: a snapshot of 100,000 blocks beside a decoding request.

    python tests/bench/bench_watch.py [--blocks 100000] [--snapshots 20]

A real pod on loopback, without weights, its steps 2 ms long. Prints one JSON line: the gaps between steps with and
without a watcher that takes one snapshot after the other, in milliseconds, less the time for which the engine's thread
was ready and the system gave it no core (`raw_max` has that in it). The watcher is a process of its own: with two cores
it, the server's thread and the engine's share them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import grpc.aio
from headstart.app.pod import Pod, start_pod
from headstart.config import Settings
from headstart.contract.proto import inference_pb2, inference_pb2_grpc, prefix_cache_pb2, prefix_cache_pb2_grpc

STEP_SECONDS = 0.002
CHANNEL = [("grpc.max_receive_message_length", 32 << 20)]


async def take_snapshots(port: int, count: int) -> int:
    """Watch from nothing `count` times; the number of hashes seen in the last snapshot."""
    seen = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL) as channel:
        stub = prefix_cache_pb2_grpc.PrefixCacheStub(channel)
        for _ in range(count):
            call = stub.Watch(prefix_cache_pb2.WatchRequest())
            seen = 0
            async for update in call:
                seen += len(update.snapshot.hashes)
                if update.WhichOneof("update") == "snapshot" and update.snapshot.last:
                    break
            call.cancel()
    return seen


async def fill(stub: inference_pb2_grpc.InferenceStub, num_blocks: int) -> None:
    """Cache that many blocks by prompts of 4,096 blocks each."""
    for start in range(0, num_blocks, 4096):
        count = min(4096, num_blocks - start)
        ids = [(start * 16 + place) * 7919 % 40_000 + 100 for place in range(16 * count + 1)]
        prompt = inference_pb2.TokenIds(ids=[(start // 4096) + 1, *ids[1:]])
        request = inference_pb2.GenerateRequest(token_ids=prompt, max_tokens=1)
        async for _ in stub.Generate(request):
            pass


class StepClock:
    """When steps ended, and how long the calling thread had waited for a core until then, in seconds."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self._file = -1

    def __call__(self, _plan: object, _output: object, _updates: object) -> None:
        if self._file < 0:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        waited_ns = int(os.pread(self._file, 100, 0).split()[1])
        self.ends.append((time.perf_counter(), waited_ns / 1e9))


async def gaps_ms(stub: inference_pb2_grpc.InferenceStub, pod: Pod, seconds: float) -> list[tuple[float, float]]:
    """Gaps between committed steps while one request decodes, as the clock has them and less the waits for a core."""
    clock = StepClock()
    pod.engine._loop._on_step = clock
    prompt = inference_pb2.TokenIds(ids=[5, 6, 7])
    call = stub.Generate(inference_pb2.GenerateRequest(token_ids=prompt, max_tokens=90_000, ignore_eos=True))
    stop = asyncio.get_running_loop().time() + seconds
    async for _ in call:
        if asyncio.get_running_loop().time() > stop:
            call.cancel()
            break
    await asyncio.sleep(0.2)
    return [
        (1000 * (end - start), 1000 * (end - start - (waited - waited_before)))
        for (start, waited_before), (end, waited) in pairwise(clock.ends[10:])
    ]


def summary(gaps: list[tuple[float, float]]) -> dict[str, float]:
    ordered = sorted(own for _, own in gaps)
    return {
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[int(len(ordered) * 0.99)], 3),
        "max": round(ordered[-1], 3),
        "raw_max": round(max(raw for raw, _ in gaps), 3),
    }


async def measure(num_blocks: int, num_snapshots: int) -> dict[str, object]:
    settings = Settings(
        runner={"kind": "simulated", "step_seconds": STEP_SECONDS, "token_seconds": 0.0},
        cache={"num_blocks": num_blocks + 70_000},
        scheduler={"max_num_batched_tokens": 100_000, "long_prefill_token_threshold": 100_000},
        limits={"max_queued_tokens": 1 << 24},
        server={"grpc_port": 0, "health_port": 0, "http_port": 0, "metrics_port": 0},
        model={"max_len": 100_000},
    )
    pod = await start_pod(settings, progress=lambda _stage, _fraction: None)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{pod.grpc_port}", CHANNEL) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            await fill(stub, num_blocks)
            alone = await gaps_ms(stub, pod, 4.0)
            command = [sys.executable, __file__, "--watch", str(pod.grpc_port), "--snapshots", str(num_snapshots)]
            watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            watched = await gaps_ms(stub, pod, 6.0)
            seen = int((await asyncio.to_thread(watcher.communicate))[0])
        return {"blocks": seen, "step_ms": 1000 * STEP_SECONDS, "alone": summary(alone), "watched": summary(watched)}
    finally:
        await pod.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--snapshots", type=int, default=10)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watch:
        time.sleep(1.0)
        print(asyncio.run(take_snapshots(arguments.watch, arguments.snapshots)))
    else:
        print(json.dumps(asyncio.run(measure(arguments.blocks, arguments.snapshots))))


if __name__ == "__main__":
    main()
