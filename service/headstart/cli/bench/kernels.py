"""`headstart bench kernels`: each native kernel's share of what this machine can do.

The limits - read bandwidth, and the peak of products in registers - are measured in the same run, before and after each
group of kernels, because neighbours of a virtual machine move them. The JSON line is {kernel: share}.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable, Iterator

from headstart.cli.bench.output import print_result
from headstart.cli.progress import LoadProgress
from headstart.cli.values import whole
from headstart.errors import ConfigError

if typing.TYPE_CHECKING:
    from headstart.cli.bench.kernels_limits import Figure, Limits, Machine

_GROUPS = ("gemm", "attention", "decoder")
_WEIGHT_TYPES = ("f32", "bf16", "q8_0", "q4_1")
_DTYPES = ("bfloat16", "quantized")
_ROWS = (1, 4, 8, 16, 32, 64, 256, 1024)
_QUICK_ROWS = (1, 16)
_SLOW_ROWS = 64
_MAX_THREADS = 1024


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        type=_words(_GROUPS),
        default=list(_GROUPS),
        metavar="GROUP,...",
        help=f"Of {', '.join(_GROUPS)} [all].",
    )
    parser.add_argument(
        "--weights",
        type=_words(_WEIGHT_TYPES),
        default=["bf16", "q8_0", "q4_1"],
        metavar="TYPE,...",
        help=f"Of gemm: {', '.join(_WEIGHT_TYPES)} [bf16,q8_0,q4_1].",
    )
    parser.add_argument("--isa", default="", help="An instruction set instead of the best one.")
    parser.add_argument("--threads", type=whole(1, _MAX_THREADS), default=0, help="[all usable cores]")
    parser.add_argument("--quick", action="store_true", help="Few sizes, few repetitions: a rough figure.")


def run(parsed: argparse.Namespace) -> int:
    machine = _machine(parsed)
    from headstart.cli.bench.kernels_limits import floor_s, is_bound_by_reading, share

    shares, rows, all_limits = {}, [], []
    with LoadProgress() as progress:
        for limits, figures in _groups(parsed, machine, progress):
            all_limits.append(limits)
            for figure in figures:
                shares[figure.name] = round(share(figure, limits), 3)
                rows.append(
                    (
                        figure.name,
                        f"{figure.seconds * 1e3:.3f}",
                        f"{floor_s(figure, limits) * 1e3:.3f}",
                        f"{shares[figure.name]:.2f}",
                        "read" if is_bound_by_reading(figure, limits) else "multiply",
                    )
                )
    print_result(
        shares,
        title=f"{machine.isa}, {machine.pool.size} threads",
        columns=("kernel", "ms", "at least", "share", "limit"),
        rows=rows,
        note=_limits_note(all_limits),
    )
    return 0


def _groups(
    parsed: argparse.Namespace, machine: Machine, progress: LoadProgress
) -> Iterator[tuple[Limits, list[Figure]]]:
    """Each group's figures with the better of the limits before and after it."""
    from headstart.cli.bench.kernels_limits import better, measure_limits

    measures = {"gemm": _gemm, "attention": _attention, "decoder": _decoder}
    before = measure_limits(machine)
    for group in parsed.only:
        progress.show(group, 0.0)
        figures = list(measures[group](parsed, machine))
        after = measure_limits(machine)
        progress.show(group, 1.0)
        yield better(before, after), figures
        before = after


def _gemm(parsed: argparse.Namespace, machine: Machine) -> Iterator[Figure]:
    from headstart.cli.bench.kernels_gemm import Layers

    for weight_type in parsed.weights:
        layers = Layers(weight_type)
        for rows in _QUICK_ROWS if parsed.quick else _ROWS:
            yield from layers.measure(machine, rows, _repetitions(parsed, is_slow=rows > _SLOW_ROWS))


def _attention(parsed: argparse.Namespace, machine: Machine) -> Iterator[Figure]:
    from headstart.cli.bench.kernels_attention import WORKS, measure_attention

    for work in WORKS[:2] if parsed.quick else WORKS:
        yield measure_attention(machine, work, repetitions=_repetitions(parsed))[0]


def _decoder(parsed: argparse.Namespace, _: Machine) -> Iterator[Figure]:
    from headstart.cli.bench.kernels_decoder import STEPS, measure_steps
    from headstart.model.source import BUILT_IN, resolve_source
    from headstart.model.weights import open_checkpoint
    from headstart.runner.native_runner import Cpu

    checkpoint = open_checkpoint(resolve_source(BUILT_IN))
    cpu = Cpu(num_threads=parsed.threads, isa=parsed.isa)
    for dtype in _DTYPES[:1] if parsed.quick else _DTYPES:
        steps = STEPS[:1] if parsed.quick else STEPS
        yield from measure_steps(checkpoint, dtype, steps, cpu=cpu, repetitions=_repetitions(parsed))


def _repetitions(parsed: argparse.Namespace, *, is_slow: bool = False) -> int:
    if parsed.quick:
        return 2
    return 3 if is_slow else 9


def _machine(parsed: argparse.Namespace) -> Machine:
    """Raises ConfigError when the kernels are not there, or not for this instruction set."""
    try:
        from headstart_kernels import _native
    except ImportError:
        raise ConfigError(
            "the compiled kernels are missing: with a C++ compiler reinstall headstart without HEADSTART_NATIVE=0"
        ) from None
    from headstart.app.numerics import check_native
    from headstart.cli.bench.kernels_limits import Machine

    check_native()
    if parsed.isa and parsed.isa not in _native.available_isas():
        raise ConfigError(f"--isa: {parsed.isa!r} is not here; there are {', '.join(_native.available_isas())}")
    return Machine(_native.ThreadPool(parsed.threads), parsed.isa or _native.active_isa())


def _limits_note(all_limits: list[Limits]) -> str:
    def span(values: list[float], unit: str) -> str:
        low, high = min(values) / 1e9, max(values) / 1e9
        return f"{low:.0f} {unit}" if round(low) == round(high) else f"{low:.0f} to {high:.0f} {unit}"

    read = span([limits.read_bytes_per_s for limits in all_limits], "GB/s")
    peak = span([limits.ops_per_s for limits in all_limits], "GFLOP/s")
    return f"at least: reading at {read}, multiplying at {peak}. share: that over ms. gemm: 30 layers or the head."


def _words(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Some of these words, between commas."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(known)}")
        return words

    return parse
