"""Routing policies over pods in virtual time: how much of the prompts was cached, and how long the first token took.

    python tests/bench/bench_route.py [--seeds 5] [--output-tokens 64]

4 pods of 600 blocks, 24 groups of a 100-block prefix with an 8-block suffix, 60 requests a second, 1,200 requests: the
workload that other routers were measured with. Prints a table, and last one JSON line. Their block hit ratios:
SMG with events 0.732, approximate 0.725, sglang-router 0.577, round robin 0.20.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from headstart_operator.score import Policy
from support.virtual_fleet import Arrival, Report, Shape, VirtualFleet, shared_prefix_traffic

NUM_PODS = 4
NUM_GROUPS = 24


def traffic(seed: int, output_tokens: int) -> list[Arrival]:
    return shared_prefix_traffic(
        1200,
        rate=60.0,
        weights=[1.0] * NUM_GROUPS,
        prefix_tokens=1600,
        suffix_tokens=128,
        output_tokens=output_tokens,
        seed=seed,
    )


def run(name: str, seed: int, output_tokens: int) -> Report:
    """One policy, or `static`: every group has one pod for ever."""
    arrivals = traffic(seed, output_tokens)
    if name == "static":
        return VirtualFleet(NUM_PODS, Shape(), partition=lambda group: group % NUM_PODS).run(arrivals)
    return VirtualFleet(NUM_PODS, Shape(), policy=Policy(name)).run(arrivals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=64)
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print(f"{'policy':<14}{'hit ratio':>10}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'failed':>8}")
    for name in (*Policy, "static"):
        reports = [run(name, seed, arguments.output_tokens) for seed in range(arguments.seeds)]

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        hit_ratio = mean([report.hit_ratio for report in reports])
        p50, p95, p99 = (mean([report.ttft_s(quantile) for report in reports]) for quantile in (0.5, 0.95, 0.99))
        failed = sum(report.num_failed for report in reports)
        results[str(name)] = {"hit_ratio": round(hit_ratio, 4), "p95_s": round(p95, 5), "failed": failed}
        print(f"{name:<14}{hit_ratio:>10.3f}{p50 * 1e3:>9.1f}{p95 * 1e3:>9.1f}{p99 * 1e3:>9.1f}{failed:>8}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
