"""`headstart bench route`: routing policies over simulated pods: how much was cached, how long the first token took.

4 pods of 600 blocks in virtual time, with the real scheduler, block manager and event log in each, behind the router's
own decision. `static` is what a perfect fixed partition reaches: each group has one pod for ever. Block hit ratios of
other routers on the same traffic, on pods that a formula stands for too: SMG with events 0.732, approximate 0.725,
sglang-router 0.577, round robin 0.20.
"""

from __future__ import annotations

import argparse
import statistics

from headstart_operator.decision.score import Policy

from headstart.cli.bench.output import print_result
from headstart.cli.bench.traffic import SharedPrefixes
from headstart.cli.bench.virtual_fleet import Report, VirtualFleet
from headstart.cli.bench.virtual_pod import Shape
from headstart.cli.progress import LoadProgress
from headstart.cli.values import MAX_UINT64, whole

_NUM_PODS = 4
_STATIC = "static"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=[1, 2, 3],
        metavar="N,N,...",
        help="Traffic is drawn anew from each; hit ratio and p95 are means over them [1,2,3].",
    )
    parser.add_argument("--quick", action="store_true", help="300 requests of the first seed: a rough figure.")


def run(parsed: argparse.Namespace) -> int:
    traffic = SharedPrefixes(num_requests=300) if parsed.quick else SharedPrefixes()
    seeds = parsed.seeds[:1] if parsed.quick else parsed.seeds
    reports: dict[str, list[Report]] = {}
    with LoadProgress() as progress:
        for name in (*Policy, _STATIC):
            for number, seed in enumerate(seeds):
                progress.show(str(name), number / len(seeds))
                reports.setdefault(str(name), []).append(play(str(name), traffic, seed))
            progress.show(str(name), 1.0)
    rows = [(name, *_cells(each)) for name, each in reports.items()]
    print_result(
        {name: _summary(each) for name, each in reports.items()},
        title=f"{_NUM_PODS} pods, {traffic.num_requests} requests, seeds {', '.join(map(str, seeds))}",
        columns=("policy", "hit ratio", "lowest", "p50 ms", "p95 ms", "p99 ms", "failed"),
        rows=rows,
        note="hit ratio: prompt tokens found cached, of all; lowest: of one seed; "
        "p50, p95, p99: until the first token, in virtual time.",
    )
    return 0


def play(name: str, traffic: SharedPrefixes, seed: int) -> Report:
    """One policy, or `static`, on one seed's traffic."""
    arrivals = traffic.arrivals(seed)
    if name == _STATIC:
        return VirtualFleet(_NUM_PODS, Shape(), partition=lambda group: group % _NUM_PODS).run(arrivals)
    return VirtualFleet(_NUM_PODS, Shape(), policy=Policy(name)).run(arrivals)


def _seeds(text: str) -> list[int]:
    parse = whole(0, MAX_UINT64)
    return [parse(part) for part in text.split(",")]


def _summary(reports: list[Report]) -> dict[str, float]:
    return {
        "hit_ratio": round(statistics.mean(each.hit_ratio for each in reports), 4),
        "p95_s": round(statistics.mean(each.ttft_s(0.95) for each in reports), 5),
        "failed": sum(each.num_failed for each in reports),
    }


def _cells(reports: list[Report]) -> list[str]:
    hit_ratios = [each.hit_ratio for each in reports]
    times = [statistics.mean(each.ttft_s(quantile) for each in reports) for quantile in (0.5, 0.95, 0.99)]
    return [
        f"{statistics.mean(hit_ratios):.3f}",
        f"{min(hit_ratios):.3f}",
        *(f"{time_s * 1e3:.1f}" for time_s in times),
        str(sum(each.num_failed for each in reports)),
    ]
