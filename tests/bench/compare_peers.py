"""This engine, llama.cpp and vLLM on the same work in turn, in one run.

    python tests/bench/compare_peers.py --models FOLDER --llamacpp FOLDER --vllm PYTHON [--reps 3]

`--models` is what peer_model.py wrote, `--llamacpp` holds llama-batched-bench, `--vllm` is the Python of an environment
with vLLM. A peer that is not named is left out. Engines take turns within each repetition, because a neighbour moves
the memory bandwidth of a virtual machine by half within minutes; ratios are medians over repetitions of the ratio in
one repetition. The last line is JSON with every median.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import peer_llamacpp
from headstart.cli.bench.kernels_limits import Machine, measure_limits
from headstart.cli.bench.output import print_result
from headstart.cli.bench.serve import workload_names
from headstart.cli.bench.serve_load import CpuMeter
from headstart.cli.bench.serve_metrics import median_row
from headstart.cli.bench.serve_workloads import WORKLOADS
from headstart_kernels import _native
from peer_model import BF16, HF, Q4_1
from peer_rows import Row, Worker

HERE = Path(__file__).parent
SERVICE = HERE.parents[1] / "service"
OURS, OURS_QUANTIZED = "headstart", "headstart quantized"
LLAMACPP, LLAMACPP_Q4_1 = "llama.cpp bf16", "llama.cpp q4_1"
VLLM, VLLM_SMALL = "vllm", "vllm small steps"
QUIET_S = 0.5
"""Until the threads of the engine before have gone to sleep."""
BUSY_CORES = 0.1


class Figure(NamedTuple):
    """One line of the table. `peers` are whom it may be compared with; `is_time` when less is better."""

    workload: str
    key: str
    unit: str
    peers: tuple[str, ...]
    is_time: bool = False

    @property
    def name(self) -> str:
        return f"{self.workload} {self.unit}"


ALL_PEERS = (LLAMACPP, LLAMACPP_Q4_1, VLLM)
# llama.cpp plays W4 without each request's own tokens: its times stand in the table and in no ratio.
FIGURES = (
    Figure("W1", "decode_tok_s", "decode tok/s", ALL_PEERS),
    Figure("W1", "ttft_ms_p50", "TTFT ms", (VLLM,), is_time=True),
    Figure("W2", "decode_tok_s", "decode tok/s", ALL_PEERS),
    Figure("W2", "output_tok_s", "output tok/s", (VLLM,)),
    Figure("W3", "prefill_tok_s", "prefill tok/s", ALL_PEERS),
    Figure("W4c", "wall_s", "wall s", (VLLM,), is_time=True),
    Figure("W4w", "wall_s", "wall s", (VLLM,), is_time=True),
    Figure("W5", "long_ttft_ms", "long TTFT ms", (VLLM, VLLM_SMALL), is_time=True),
    Figure("W5", "decoder_itl_during_ms_p99", "ITL p99 ms", (VLLM, VLLM_SMALL), is_time=True),
)
PEERS_OF = {OURS: (LLAMACPP, VLLM, VLLM_SMALL), OURS_QUANTIZED: (LLAMACPP_Q4_1, VLLM, VLLM_SMALL)}
"""llama.cpp is compared with at the same width of weights; vLLM has one."""


AVX2_ENVIRONMENT = {
    "HEADSTART_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


class Engine(NamedTuple):
    """`measure` takes a workload and a seed."""

    workloads: frozenset[str]
    measure: Callable[[str, str], Row]


Rows = dict[str, dict[str, list[Row]]]
"""By engine and workload, one row a repetition."""


def main() -> None:
    options = parse_options()
    os.environ.setdefault("COLUMNS", "130")  # six engines do not fit what a pipe is taken for
    with open_engines(options) as (engines, firsts):
        rows, read_gb_per_s = measure_in_turn(engines, options.workloads, options.reps)
    medians = {name: {kind: median_row(each) for kind, each in kinds.items()} for name, kinds in rows.items()}
    ratios = {f"{figure.name}: {pair}": found for figure in FIGURES for pair, found in ratios_of(figure, rows).items()}
    report = {"medians": medians, "ratios": ratios, "starts": firsts, "read_gb_per_s": read_gb_per_s}
    print_result(
        report,
        title=f"medians of {options.reps}, reading at {min(read_gb_per_s):.0f} to {max(read_gb_per_s):.0f} GB/s",
        columns=("", *rows),
        rows=[table_row(figure, medians) for figure in FIGURES if figure.workload in options.workloads],
        note="\n".join([*ratio_lines(ratios), *disturbed_lines(rows)]),
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="What peer_model.py wrote.")
    parser.add_argument("--llamacpp", type=Path, help="Folder of llama.cpp's programs.")
    parser.add_argument("--vllm", type=Path, help="The Python of an environment with vLLM.")
    parser.add_argument("--vllm-dtype", default="bfloat16", help="float32 where the processor has no bf16 [bfloat16].")
    parser.add_argument("--vllm-eager", action="store_true", help="Do not let vLLM compile: a quick start.")
    parser.add_argument("--vllm-preload", default="", help="Libraries for its LD_PRELOAD, such as tcmalloc and iomp5.")
    parser.add_argument("--vllm-small-budget", type=int, help="A second vLLM with so many tokens a step, for W5.")
    parser.add_argument("--workloads", type=workload_names, default=list(WORKLOADS), help="W4 is W4c and W4w [all].")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--avx2", action="store_true", help="Nobody uses AVX-512; llama.cpp must be built without.")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Of llama.cpp.")
    return parser.parse_args()


@contextmanager
def open_engines(options: argparse.Namespace) -> Iterator[tuple[dict[str, Engine], dict[str, Row]]]:
    """The engines, loaded and idle, and what each said of its start."""
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        firsts: dict[str, Row] = {}
        for name, command, environment, workloads in worker_commands(options):
            print(f"starting {name}", file=sys.stderr)
            worker = stack.enter_context(closing(Worker(command, environment)))
            engines[name], firsts[name] = Engine(workloads, worker.measure), worker.first
        if options.llamacpp is not None:
            engines[LLAMACPP] = llamacpp_engine(options, BF16)
            engines[LLAMACPP_Q4_1] = llamacpp_engine(options, Q4_1)
        yield engines, firsts


def plain_environment() -> dict[str, str]:
    """Without what would slow down one of the engines' libraries."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("OPENBLAS_", "OMP_"))}


def worker_commands(
    options: argparse.Namespace,
) -> Iterator[tuple[str, list[str], dict[str, str], frozenset[str]]]:
    """Name, command, environment and workloads of each engine that has a process of its own."""
    plain = plain_environment() | (AVX2_ENVIRONMENT if options.avx2 else {})
    everything = frozenset(WORKLOADS)
    ours = [sys.executable, str(HERE / "peer_headstart.py"), "--device", "cpu"]
    yield OURS, [*ours, "--dtype", "bfloat16"], plain, everything
    yield OURS_QUANTIZED, [*ours, "--dtype", "quantized"], plain, everything
    if options.vllm is None:
        return
    cores = sorted(os.sched_getaffinity(0))
    environment = plain | {
        "PYTHONPATH": str(SERVICE),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "LD_PRELOAD": options.vllm_preload,
        "HF_HUB_OFFLINE": "1",
    }
    vllm = [str(options.vllm), str(HERE / "peer_vllm.py"), "--model", str(options.models / HF)]
    vllm += ["--dtype", options.vllm_dtype] + ["--eager"] * options.vllm_eager + ["--avx2"] * options.avx2
    yield VLLM, vllm, environment, everything
    if options.vllm_small_budget is not None:
        yield VLLM_SMALL, [*vllm, "--budget", str(options.vllm_small_budget)], environment, frozenset({"W5"})


def llamacpp_engine(options: argparse.Namespace, model: str) -> Engine:
    program = options.llamacpp / "llama-batched-bench"

    def measure(workload: str, seed: str) -> Row:
        meter = CpuMeter()
        row = peer_llamacpp.measure(program, options.models / model, workload, options.threads)
        return row | meter.read()

    return Engine(peer_llamacpp.WORKLOADS, measure)


def measure_in_turn(engines: Mapping[str, Engine], workloads: Sequence[str], num_reps: int) -> tuple[Rows, list[float]]:
    """All rows, and the read bandwidth in GB/s as it was before each repetition. The order of engines rotates."""
    machine = Machine(_native.ThreadPool(0), _native.active_isa())
    rows: Rows = {name: {} for name in engines}
    run, names = secrets.token_hex(4), list(engines)
    read_gb_per_s = []
    for number in range(num_reps):
        read_gb_per_s.append(round(measure_limits(machine).read_bytes_per_s / 1e9, 1))
        for workload in workloads:
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if workload not in engines[name].workloads:
                    continue
                time.sleep(QUIET_S)
                row = engines[name].measure(workload, f"{run}/{number}")
                rows[name].setdefault(workload, []).append(row)
                print(f"{number + 1}/{num_reps} {workload} {name}: {main_figures(workload, row)}", file=sys.stderr)
    return rows, read_gb_per_s


def main_figures(workload: str, row: Row) -> str:
    wanted = [figure for figure in FIGURES if figure.workload == workload and row.get(figure.key) is not None]
    return ", ".join(f"{row[figure.key]:g} {figure.unit}" for figure in wanted)


def ratios_of(figure: Figure, rows: Rows) -> dict[str, dict[str, float]]:
    """Pair -> this engine's figure over a peer's: the median, the least and the most of the repetitions."""
    found = {}
    for ours, usual_peers in PEERS_OF.items():
        for peer in usual_peers:
            if peer not in figure.peers:
                continue
            mine, its = (rows.get(name, {}).get(figure.workload, []) for name in (ours, peer))
            if mine and its:
                ratios = [one[figure.key] / other[figure.key] for one, other in zip(mine, its, strict=True)]
                values = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
                found[f"{ours} / {peer}"] = {name: round(value, 3) for name, value in values.items()}
    return found


def ratio_lines(ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{name} = {each['median']:.2f} ({each['least']:.2f} to {each['most']:.2f})" for name, each in ratios.items()
    ]


def disturbed_lines(rows: Rows) -> list[str]:
    """Whose rows other programs disturbed."""
    return [
        f"disturbed: {name} {workload}, others took up to {worst:.2f} cores"
        for name, kinds in rows.items()
        for workload, each in kinds.items()
        if (worst := max(row["cpu_others"] for row in each)) > BUSY_CORES
    ]


def table_row(figure: Figure, medians: Mapping[str, Mapping[str, Row]]) -> tuple[str, ...]:
    values = [kinds.get(figure.workload, {}).get(figure.key) for kinds in medians.values()]
    return (figure.name, *("-" if value is None else f"{value:.4g}" for value in values))


if __name__ == "__main__":
    main()
