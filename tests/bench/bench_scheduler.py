"""What a step costs in Python: schedule + commit per running request and decode step, and memory per block.

    python tests/bench/bench_scheduler.py [--rounds 7]

Prints one JSON line. Beside it stand figures of peers, measured with the same shape of work on the same class of
machine: vLLM 0.32 schedule + update_from_output 8.3 to 11.4 us, nano-vllm's bare loop 0.41 to 0.46 us.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.request import GenerateSpec
from headstart.core.step import StepOutput
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PEERS_US = {"vllm-0.32": [8.3, 11.4], "nano-vllm": [0.41, 0.46]}


def decoding_scheduler(num_running: int) -> tuple[Scheduler, EventLog]:
    """All requests admitted and past their prompts, each at another place within its block."""
    log = EventLog()
    manager = BlockManager(BlockPool(num_running * 40, log), block_size=BLOCK_SIZE, root=bytes(32))
    limits = SchedulerLimits(max_num_batched_tokens=32768, max_num_seqs=num_running, max_len=4096)
    scheduler = Scheduler(manager, limits, eos_token_ids=frozenset({2}))
    for index in range(num_running):
        length = 64 + index % BLOCK_SIZE
        prompt = tuple(range(index * 1000 + 10, index * 1000 + 10 + length))
        scheduler.add(GenerateSpec(request_id=f"request-{index}", prompt_token_ids=prompt, max_tokens=500))
    plan = scheduler.schedule()
    scheduler.commit(plan, StepOutput([[7]] * plan.num_rows))
    return scheduler, log


def us_per_request_step(num_running: int, num_steps: int) -> float:
    """Processor time of schedule + commit, event sealing included, in us per running request and decode step."""
    scheduler, log = decoding_scheduler(num_running)
    spent = 0.0
    for step in range(num_steps):
        sampled = [[100 + step] for _ in range(num_running)]
        started = time.thread_time()
        plan = scheduler.schedule()
        scheduler.commit(plan, StepOutput(sampled))
        log.seal()
        spent += time.thread_time() - started
        assert plan.num_rows == num_running
    return spent / num_steps / num_running * 1e6


def bytes_per_block(num_blocks: int = 100_000) -> float:
    """Memory of the pool and its tables when every block is cached and in use."""
    prompt = tuple(range(num_blocks * BLOCK_SIZE - 1))
    spec = GenerateSpec(request_id="all", prompt_token_ids=prompt, max_tokens=1)
    gc.collect()
    tracemalloc.start()
    log = EventLog()
    manager = BlockManager(BlockPool(num_blocks, log), block_size=BLOCK_SIZE, root=bytes(32))
    limits = SchedulerLimits(
        max_num_batched_tokens=num_blocks * BLOCK_SIZE, max_len=num_blocks * BLOCK_SIZE, watermark=0.0
    )
    scheduler = Scheduler(manager, limits)
    before_add = tracemalloc.get_traced_memory()[0]
    scheduler.add(spec)
    tokens = tracemalloc.get_traced_memory()[0] - before_add  # the request's own copy of its tokens
    assert scheduler.schedule().total_tokens == len(prompt)
    log.seal()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - tokens
    tracemalloc.stop()
    return used / num_blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    figures = {}
    for num_running in (32, 128, 256):
        rounds = [us_per_request_step(num_running, arguments.steps) for _ in range(arguments.rounds)]
        figures[str(num_running)] = round(statistics.median(rounds), 3)
        print(f"{num_running} running: {figures[str(num_running)]} us per request and step", file=sys.stderr)
    row = {
        "us_per_request_step": figures,
        "bytes_per_block": round(bytes_per_block()),
        "peers_us": PEERS_US,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
