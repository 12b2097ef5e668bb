"""How fast the router is: its decision, its index, what it adds to a first token, and messages a second.

    python tests/bench/bench_operator.py [--pods 64] [--blocks 10000] [--rounds 5] [--quick]

Decisions run in this process, on pods that only exist as what they told; streams run through real programs on
loopback. Processor time stands beside the wall clock, for it depends less on what else the machine does. Prints a table
and last one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headstart.cli.bench.output import print_result
from headstart.cli.progress import LoadProgress
from headstart.cli.values import whole
from operator_index import Decisions, Timed, draw_prompt, fill, index_bytes, make_fleet, percentile
from operator_streams import FirstToken, Flow, first_tokens, flow, hops, per_message_us

PROMPTS = {"16 new ids": (16, False), "8192 known ids": (8192, True), "8192 new ids": (8192, False)}
NUM_STREAMS = 192
_RUN = 200  # decisions of a kind in a row: what else the machine does comes and goes
_ROUNDS_OF_A_RUN = 20
STEP_S = 0.02  # so that the streams bring more than 5,000 messages a second, and pods seldom join two of them

Show = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Decisions by what pods hold of the prompt, first tokens by prompt and hop, flows by hop."""

    decisions: dict[str, list[Timed]]
    bytes_per_entry: float
    ttft: dict[str, dict[str, list[FirstToken]]]
    flows: dict[str, list[Flow]]

    def added_ms(self, prompt: str, hop: str) -> dict[str, float]:
        """To the time of a first message: the median, that of the quietest run of rounds, and processor time."""
        there, direct = self.ttft[prompt][hop], self.ttft[prompt]["direct"]
        runs = [slice(start, start + _ROUNDS_OF_A_RUN) for start in range(0, len(there), _ROUNDS_OF_A_RUN)]
        figures = {
            "p50": _median_wall_s(there) - _median_wall_s(direct),
            "p50_quiet": min(_median_wall_s(there[run]) - _median_wall_s(direct[run]) for run in runs),
            "cpu_p50": statistics.median(each.busy_s for each in there),
        }
        return {name: round(1e3 * seconds, 2) for name, seconds in figures.items()}

    def result(self) -> dict[str, object]:
        return {
            "decision_ms": {name: _decision(timed) for name, timed in self.decisions.items()},
            "index_bytes_per_block_and_pod": round(self.bytes_per_entry, 1),
            "added_ttft_ms": {
                prompt: {hop: self.added_ms(prompt, hop) for hop in ("bare", "router")} for prompt in self.ttft
            },
            "messages_per_core_s": {hop: round(1e6 / per_message_us(each)) for hop, each in self.flows.items()},
            "messages_per_s": {hop: round(_rate(each)) for hop, each in self.flows.items()},
        }

    def rows(self) -> Iterator[tuple[str, str, str]]:
        for name, timed in self.decisions.items():
            figures = _decision(timed)
            yield f"decision, {name} prompt, p50", f"{figures['cpu_p50']:.2f} ms", ""
            yield "  p99", f"{figures['cpu_p99']:.2f} ms", "1 ms"
            yield f"  p99 of the quietest {_RUN}", f"{figures['cpu_p99_quiet']:.2f} ms", "1 ms"
        yield "index, per (block, pod)", f"{self.bytes_per_entry:.0f} bytes", "200 bytes"
        for prompt in self.ttft:
            router, bare = self.added_ms(prompt, "router"), self.added_ms(prompt, "bare")
            yield f"added to TTFT, {prompt}, p50 by the clock", f"{router['p50']:.2f} ms", "2 ms"
            yield f"  of the quietest {_ROUNDS_OF_A_RUN}", f"{router['p50_quiet']:.2f} ms", "2 ms"
            yield "  by the bare proxy", f"{bare['p50']:.2f} ms", ""
            yield (
                "  processor time of the router, of the bare",
                f"{router['cpu_p50']:.2f}, {bare['cpu_p50']:.2f} ms",
                "",
            )
        for hop, bound in (("router", "5,000"), ("bare", "")):
            yield f"messages per core second, {hop}", f"{1e6 / per_message_us(self.flows[hop]):,.0f}", bound
            yield "  per second of wall clock", f"{_rate(self.flows[hop]):,.0f}", ""


def _decision(timed: list[Timed]) -> dict[str, float]:
    cpu, wall = [each.hash_s + each.rank_s for each in timed], [each.wall_s for each in timed]
    figures = {
        "hash_p50": statistics.median(each.hash_s for each in timed),
        "place_p50": statistics.median(each.place_s for each in timed),
        "cpu_p50": statistics.median(cpu),
        "cpu_p99": percentile(cpu, 0.99),
        "cpu_p99_quiet": min(percentile(cpu[start : start + _RUN], 0.99) for start in range(0, len(cpu), _RUN)),
        "wall_p50": statistics.median(wall),
        "wall_p99": percentile(wall, 0.99),
    }
    return {name: round(1e3 * seconds, 3) for name, seconds in figures.items()}


def _median_wall_s(asked: list[FirstToken]) -> float:
    return statistics.median(each.wall_s for each in asked)


def _rate(flows: list[Flow]) -> float:
    return statistics.median(each.num_messages / each.wall_s for each in flows)


async def measure(arguments: argparse.Namespace, show: Show) -> Figures:
    bytes_per_entry = index_bytes(num_pods=arguments.pods, num_blocks=arguments.blocks, num_shared=0)
    decisions = await _decide(arguments, show)
    gc.collect()
    return Figures(
        decisions=decisions,
        bytes_per_entry=bytes_per_entry,
        ttft=await _first_tokens(_ROUNDS_OF_A_RUN * (1 if arguments.quick else 2 * arguments.rounds), show),
        flows=await _flows(1 if arguments.quick else arguments.rounds, show),
    )


async def _decide(arguments: argparse.Namespace, show: Show) -> dict[str, list[Timed]]:
    fleet = make_fleet()
    corpus = fill(
        fleet,
        num_pods=arguments.pods,
        num_blocks=arguments.blocks,
        progress=lambda fraction: show(f"{arguments.pods} pods of {arguments.blocks} blocks", fraction),
    )
    choose = random.Random(3)
    prompts: dict[str, Callable[[], Sequence[int]]] = {
        "shared": lambda: choose.choice(corpus.hot),
        "own": lambda: choose.choice(corpus.own),
        "new": lambda: draw_prompt(choose),
    }
    decider = Decisions(fleet)
    decided: dict[str, list[Timed]] = {name: [] for name in prompts}
    count = 2 * _RUN * (1 if arguments.quick else arguments.rounds)
    for number in range(count):
        for name, draw in prompts.items():
            decided[name].append(await decider.decide(draw()))
        show("decisions", (number + 1) / count)
    await fleet.close()
    return decided


async def _first_tokens(rounds: int, show: Show) -> dict[str, dict[str, list[FirstToken]]]:
    found = {}
    async with hops(step_s=0.0) as ways:
        for prompt, (num_tokens, is_known) in PROMPTS.items():
            found[prompt] = await first_tokens(
                ways,
                num_tokens=num_tokens,
                is_known=is_known,
                rounds=rounds,
                progress=partial(show, f"first tokens of {prompt}"),
            )
    return found


async def _flows(rounds: int, show: Show) -> dict[str, list[Flow]]:
    async with hops(step_s=STEP_S) as ways:
        flows: dict[str, list[Flow]] = {hop.name: [] for hop in ways if hop.pid is not None}
        for number in range(rounds):
            for hop in ways:
                if hop.pid is not None:
                    seed = 2 * number + (hop.name == "router")
                    flows[hop.name].append(await flow(hop, num_streams=NUM_STREAMS, num_tokens=150, seed=seed))
            show("messages", (number + 1) / rounds)
        return flows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=whole(1, 1000), default=64)
    parser.add_argument("--blocks", type=whole(4096, 1_000_000), default=10_000, help="On each pod.")
    parser.add_argument("--rounds", type=whole(1, 100), default=5, help="More are steadier.")
    parser.add_argument("--quick", action="store_true", help="Rough figures in half a minute.")
    arguments = parser.parse_args()
    with LoadProgress() as progress:
        figures = asyncio.run(measure(arguments, progress.show))
    print_result(
        figures.result(),
        title="The router, processor time unless said otherwise",
        columns=("figure", "value", "bound"),
        rows=figures.rows(),
        note="A decision: hash, match and score a prompt of 8,192 tokens when every pod has told a new load.",
    )


if __name__ == "__main__":
    main()
