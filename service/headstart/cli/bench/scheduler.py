"""`headstart bench scheduler`: what a step costs in Python, per running request, and a block in memory.

Measures the real scheduler, block manager and event log without a model. Peers, by the same shape of work on the same
class of machine: vLLM 0.32 8.3 to 11.4 us, nano-vllm's bare loop 0.41 to 0.46 us.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.cli.bench.output import print_result
from headstart.cli.progress import LoadProgress
from headstart.cli.values import whole
from headstart.contract.request import GenerateSpec
from headstart.core.step import StepOutput
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler

_RUNNING = (32, 128, 256)
_BLOCK_SIZE = 16
_MAX_STEPS = 400  # the decoding requests end after 500
_HOLDERS = 100  # requests that hold all the blocks


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=whole(1, 1000), default=7, help="The median of so many is told [7].")
    parser.add_argument("--steps", type=whole(1, _MAX_STEPS), default=300, help="Decode steps of a round [300].")
    parser.add_argument("--quick", action="store_true", help="One short round: a rough figure in a second.")


def run(parsed: argparse.Namespace) -> int:
    num_rounds, num_steps = (1, 30) if parsed.quick else (parsed.rounds, parsed.steps)
    figures = {}
    with LoadProgress() as progress:
        for num_running in _RUNNING:
            stage, rounds = f"{num_running} running", []
            for number in range(num_rounds):
                progress.show(stage, number / num_rounds)
                rounds.append(us_per_request_step(num_running, num_steps))
            progress.show(stage, 1.0)
            figures[str(num_running)] = round(statistics.median(rounds), 3)
        progress.show("memory of the blocks", 0.0)
        num_bytes = bytes_per_block(100_000)
    print_result(
        {"us_per_request_step": figures},
        title="schedule + commit + seal, processor time",
        columns=("running", "us per request and step"),
        rows=[(name, f"{figure:.2f}") for name, figure in figures.items()],
        note=f"{num_bytes:.0f} bytes a block for pool, hashes and tables, when all are cached and in use; "
        "K, V and the requests' tokens are not counted.",
    )
    return 0


def us_per_request_step(num_running: int, num_steps: int) -> float:
    """Processor time of schedule + commit, event sealing included, in us per running request and decode step."""
    scheduler, log = _decoding_scheduler(num_running)
    spent_s = 0.0
    for step in range(num_steps):
        sampled = [[100 + step] for _ in range(num_running)]
        started_s = time.thread_time()
        plan = scheduler.schedule()
        scheduler.commit(plan, StepOutput(sampled))
        log.seal()
        spent_s += time.thread_time() - started_s
        assert plan.num_rows == num_running
    return spent_s / num_steps / num_running * 1e6


def _decoding_scheduler(num_running: int) -> tuple[Scheduler, EventLog]:
    """All requests admitted and past their prompts, each at another place within its block."""
    scheduler, log = _scheduler(num_running * 40, max_num_batched_tokens=32768, max_num_seqs=num_running, max_len=4096)
    for index in range(num_running):
        length = 64 + index % _BLOCK_SIZE
        prompt = tuple(range(index * 1000 + 10, index * 1000 + 10 + length))
        scheduler.add(GenerateSpec(request_id=f"request-{index}", prompt_token_ids=prompt, max_tokens=500))
    plan = scheduler.schedule()
    scheduler.commit(plan, StepOutput([[7]] * plan.num_rows))
    return scheduler, log


def bytes_per_block(num_blocks: int) -> float:
    """Bytes of what the engine keeps of a block, when all but a few in a thousand are cached and in use.

    That is the pool and its map of hashes, and the block ids and hashes in the requests' tables. Not counted: K and V,
    the requests' own tokens, and the server's mirror of the hashes. The prompts come one after another: blocks that
    wait to be computed have an entry in the backlog on top.
    """
    # The first to come generates a token for each that follows.
    length = num_blocks // _HOLDERS * _BLOCK_SIZE - _HOLDERS
    specs = [
        GenerateSpec(
            request_id=f"request-{index}",
            prompt_token_ids=tuple(range(index * 10_000, index * 10_000 + length)),
            max_tokens=_HOLDERS + 1,
        )
        for index in range(_HOLDERS)
    ]
    tokens = [*specs[0].prompt_token_ids]
    tokens.append(0)  # a list that grew has spare room
    gc.collect()
    tracemalloc.start()
    limits = {"max_num_batched_tokens": length + _HOLDERS, "max_num_seqs": _HOLDERS, "max_len": length + 2 * _HOLDERS}
    scheduler, log = _scheduler(num_blocks, **limits)
    for spec in specs:
        scheduler.add(spec)
        plan = scheduler.schedule()
        scheduler.commit(plan, StepOutput([[7]] * plan.num_rows))
        log.seal()
    del plan
    gc.collect()
    used_bytes = tracemalloc.get_traced_memory()[0] - _HOLDERS * sys.getsizeof(tokens)
    tracemalloc.stop()
    return used_bytes / num_blocks


def _scheduler(
    num_blocks: int, *, max_num_batched_tokens: int, max_num_seqs: int, max_len: int
) -> tuple[Scheduler, EventLog]:
    log = EventLog()
    manager = BlockManager(BlockPool(num_blocks, log), block_size=_BLOCK_SIZE, root=bytes(32))
    limits = SchedulerLimits(
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs, max_len=max_len, watermark=0.0
    )
    return Scheduler(manager, limits, eos_token_ids=frozenset({2})), log
