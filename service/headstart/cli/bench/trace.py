"""`headstart bench trace FILE`: a recorded trace in virtual time, against one cache of the same total size.

Blocks are of 512 tokens, as in the trace. A pod computes 8,000 prompt tokens a second in steps of 2,048; decoding is
left out. In the simulation a block is one token: only their ratio matters.
"""

from __future__ import annotations

import argparse
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from headstart_operator.decision.score import Policy

from headstart.cli.bench.output import Bars, print_result
from headstart.cli.bench.traffic import Arrival, read_trace, sampled, shuffled
from headstart.cli.bench.virtual_fleet import VirtualFleet
from headstart.cli.bench.virtual_pod import Shape
from headstart.cli.progress import LoadProgress
from headstart.cli.values import MAX_UINT64, whole
from headstart.scheduler.limits import SchedulerLimits

_BLOCK_TOKENS = 512
_TOKENS_PER_S = 8000
_STEP_BLOCKS = 4
_FLEETS = [(8, 2000), (16, 2000), (64, 500), (64, 2000)]
_QUICK_REQUESTS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines with timestamp (ms) and hash_ids.")
    parser.add_argument(
        "--fleets",
        type=_fleets,
        default=_FLEETS,
        metavar="PODSxBLOCKS,...",
        help="Sizes of fleets to try [8x2000,16x2000,64x500,64x2000].",
    )
    parser.add_argument("--share", type=_share, default=1.0, help="Play a random share of the conversations only [1].")
    parser.add_argument("--shuffle", action="store_true", help="Let the conversations begin in another order.")
    parser.add_argument("--seed", type=whole(0, MAX_UINT64), default=1, help="Of --share and --shuffle [1].")
    parser.add_argument(
        "--quick", action="store_true", help=f"The first {_QUICK_REQUESTS} requests and the first fleet."
    )


def run(parsed: argparse.Namespace) -> int:
    arrivals, fleets = _arrivals(parsed), parsed.fleets[:1] if parsed.quick else parsed.fleets
    result: dict[str, dict[str, dict[str, float]]] = {}
    rows = []
    shares: dict[str, dict[str, float]] = {}
    with LoadProgress() as progress:
        for num_pods, num_blocks in fleets:
            name = f"{num_pods}x{num_blocks}"
            ideal = ideal_hit_ratio(arrivals, num_pods * num_blocks)
            for number, policy in enumerate(Policy):
                progress.show(name, number / len(Policy))
                found = _play(arrivals, policy, num_pods, num_blocks) | {"ideal_hit_ratio": round(ideal, 6)}
                result.setdefault(policy, {})[name] = found
                times = [f"{found[f'ttft_p{quantile}_s']:.2f}" for quantile in (50, 90, 99)]
                share = found["hit_ratio"] / ideal if ideal else None
                rows.append((str(policy), name, f"{found['hit_ratio']:.3f}", _shown(share), *times))
                shares.setdefault(name, {})[policy] = share or 0.0
            progress.show(name, 1.0)
    print_result(
        result,
        title=f"{len(arrivals)} requests of {parsed.file.name}",
        columns=("policy", "fleet", "hit ratio", "of ideal", "p50 s", "p90 s", "p99 s"),
        rows=rows,
        note="of ideal: of what one cache with all the fleet's blocks finds; p50, p90, p99: until the first token.",
        bars=Bars("hit ratio, of what one cache with all the fleet's blocks finds", shares),
    )
    return 0


def _shown(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def ideal_hit_ratio(arrivals: Sequence[Arrival], num_blocks: int) -> float:
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


def _arrivals(parsed: argparse.Namespace) -> list[Arrival]:
    arrivals = read_trace(parsed.file)
    if parsed.share < 1.0:
        arrivals = sampled(arrivals, share=parsed.share, seed=parsed.seed)
    if parsed.shuffle:
        arrivals = shuffled(arrivals, seed=parsed.seed)
    return arrivals[:_QUICK_REQUESTS] if parsed.quick else arrivals


def _play(arrivals: Sequence[Arrival], policy: Policy, num_pods: int, num_blocks: int) -> dict[str, float]:
    report = VirtualFleet(num_pods, _shape(num_blocks), policy=policy).run(arrivals)
    times = {f"ttft_p{percent}_s": round(report.ttft_s(percent / 100), 3) for percent in (50, 90, 99)}
    return {"hit_ratio": round(report.hit_ratio, 6)} | times


def _shape(num_blocks: int) -> Shape:
    return Shape(
        num_blocks=num_blocks,
        block_size=1,
        step_s=0.0,
        token_s=_BLOCK_TOKENS / _TOKENS_PER_S,
        limits=SchedulerLimits(max_num_batched_tokens=_STEP_BLOCKS, max_len=1_000_000),
    )


def _fleets(text: str) -> list[tuple[int, int]]:
    if not re.fullmatch(r"[1-9]\d{0,5}x[1-9]\d{0,8}(,[1-9]\d{0,5}x[1-9]\d{0,8})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not PODSxBLOCKS, several by commas, such as 8x2000,16x2000")
    return [(int(pods), int(blocks)) for pods, blocks in (each.split("x") for each in text.split(","))]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 and at most 1")
    return share
