"""A recorded trace of conversations in virtual time: routing policies against one cache of the same total size.

    python tests/bench/bench_trace.py conversation_trace.jsonl [--fleets 8x2000,16x2000,64x500,64x2000]

One JSON object a line, as Mooncake (FAST'25) published them: `timestamp` in ms and `hash_ids`, one per 512 tokens.
A pod computes 8,000 prompt tokens a second; decoding is left out. Prints a table, and last one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from headstart.scheduler.limits import SchedulerLimits
from headstart_operator.score import Policy
from support.virtual_fleet import Arrival, Shape, VirtualFleet

BLOCK_TOKENS = 512
TOKENS_PER_S = 8000
STEP_BLOCKS = 4
"""2,048 tokens a step. In the simulation a block is one token: only their ratio matters."""


def read_trace(path: Path) -> list[Arrival]:
    """Each distinct block id stands for the whole prefix that ends with it."""
    lines = (json.loads(line) for line in path.open())
    return [
        Arrival(at_s=line["timestamp"] / 1000, group=0, prompt=tuple(line["hash_ids"]), max_tokens=1) for line in lines
    ]


def ideal_hit_ratio(arrivals: list[Arrival], num_blocks: int) -> float:
    """Of one LRU cache, a prompt's tail evicted before its head."""
    cache: OrderedDict[int, None] = OrderedDict()
    num_hits = num_asked = 0
    for arrival in arrivals:
        prompt = arrival.prompt
        held = next((at for at, block in enumerate(prompt) if block not in cache), len(prompt))
        num_hits += min(held, len(prompt) - 1)
        num_asked += len(prompt)
        for block in reversed(prompt):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return num_hits / num_asked


def shape(num_blocks: int) -> Shape:
    return Shape(
        num_blocks=num_blocks,
        block_size=1,
        step_s=0.0,
        token_s=BLOCK_TOKENS / TOKENS_PER_S,
        limits=SchedulerLimits(max_num_batched_tokens=STEP_BLOCKS, max_len=1_000_000),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", help="without it there is nothing to replay")
    parser.add_argument("--fleets", default="8x2000,16x2000,64x500,64x2000", help="pods x blocks, several by commas")
    arguments = parser.parse_args()
    if arguments.trace is None:
        print("no trace given")
        return
    arrivals = read_trace(arguments.trace)
    results: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'policy':<14}{'fleet':>10}{'hit ratio':>11}{'of ideal':>10}{'p50 s':>8}{'p90 s':>8}{'p99 s':>8}")
    for fleet in arguments.fleets.split(","):
        num_pods, num_blocks = map(int, fleet.split("x"))
        ideal = ideal_hit_ratio(arrivals, num_pods * num_blocks)
        for policy in Policy:
            report = VirtualFleet(num_pods, shape(num_blocks), policy=policy).run(arrivals)
            p50, p90, p99 = (report.ttft_s(quantile) for quantile in (0.5, 0.9, 0.99))
            results.setdefault(policy, {})[fleet] = {
                "hit_ratio": round(report.hit_ratio, 4),
                "ideal_hit_ratio": round(ideal, 4),
                "ttft_p50_s": round(p50, 3),
                "ttft_p90_s": round(p90, 3),
                "ttft_p99_s": round(p99, 3),
            }
            share = report.hit_ratio / ideal
            print(
                f"{policy:<14}{fleet:>10}{report.hit_ratio:>11.3f}{share:>10.3f}{p50:>8.2f}{p90:>8.2f}{p99:>8.2f}",
                flush=True,
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
