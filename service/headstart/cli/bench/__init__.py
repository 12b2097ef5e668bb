"""`headstart bench WHAT`: figures of this machine and of simulated fleets, each kind in a module of its own.

Every kind shows its progress on stderr and prints a table and last one JSON line on stdout, for programs. A module has
`configure` and `run`, as a command has, and is imported only when it is asked for. Nothing here holds state.
"""

from __future__ import annotations

import argparse

from headstart.cli import nearest, run_command

# kind -> (module with `configure` and `run`, one line of help)
_KINDS = {
    "serve": ("headstart.cli.bench.serve", "the workloads W1 to W5 on an engine here, or on a server"),
    "kernels": ("headstart.cli.bench.kernels", "each native kernel's share of what this machine can do"),
    "scheduler": ("headstart.cli.bench.scheduler", "microseconds of Python per running request and step"),
    "route": (
        "headstart.cli.bench.route",
        "routing policies over simulated pods: hit ratio and time to the first token",
    ),
    "trace": ("headstart.cli.bench.trace", "a recorded trace over simulated pods, against one big cache"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(
        [
            *(f"  {name:<10} {summary}" for name, (_, summary) in _KINDS.items()),
            "\nheadstart bench WHAT --help says more. The last line on stdout is JSON.",
        ]
    )
    parser.add_argument("what", type=_kind, metavar="WHAT", help="what to measure, as listed below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="OPTIONS", help="its own, as its --help tells")


def _kind(word: str) -> str:
    if word not in _KINDS:
        raise argparse.ArgumentTypeError(
            f"no such kind: {word}{nearest(word, list(_KINDS))}; one of {', '.join(_KINDS)}"
        )
    return word


def run(parsed: argparse.Namespace) -> int:
    return run_command(f"bench {parsed.what}", *_KINDS[parsed.what], parsed.arguments)
