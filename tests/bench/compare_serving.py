"""What gRPC and HTTP cost: the same workloads on an engine in a process and through `headstart serve`, in turn.

    python tests/bench/compare_serving.py [--workloads W1,W2] [--reps 5] [--dtype bfloat16]

Client and server share the machine's cores, as peers were measured. Loss is the share of tokens a second that is gone,
the median over repetitions. The last line is JSON.
"""

from __future__ import annotations

import argparse
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from compare_peers import HERE, QUIET_S, disturbed_lines, plain_environment
from headstart.cli.bench.output import print_result
from headstart.cli.bench.serve_metrics import median_row
from peer_rows import Worker

IN_PROCESS, GRPC, HTTP = "in process", "gRPC", "HTTP"
READY = re.compile(r"ready, gRPC on port (\d+), .*HTTP on (\d+)")


class Server(NamedTuple):
    pid: int
    grpc_port: int
    http_port: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W1,W2")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    workloads = options.workloads.split(",")
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    with open_ways(options.dtype) as ways:
        run = secrets.token_hex(4)
        for number in range(options.reps):
            for workload in workloads:
                for name, worker in ways.items():
                    time.sleep(QUIET_S)
                    row = worker.measure(workload, f"{run}/{number}")
                    rows.setdefault(name, {}).setdefault(workload, []).append(row)
                    print(
                        f"{number + 1}/{options.reps} {workload} {name}: {row['output_tok_s']} tok/s", file=sys.stderr
                    )
    report(rows, workloads)


@contextmanager
def open_ways(dtype: str) -> Iterator[dict[str, Worker]]:
    """A client of each way, connected and warm."""
    client = [sys.executable, str(HERE / "peer_headstart.py")]
    with ExitStack() as stack:
        server = stack.enter_context(serve(dtype))
        pid = ["--server-pid", str(server.pid)]
        commands = {
            IN_PROCESS: [*client, "--device", "cpu", "--dtype", dtype],
            GRPC: [*client, "--endpoint", f"127.0.0.1:{server.grpc_port}", *pid],
            HTTP: [*client, "--http", f"http://127.0.0.1:{server.http_port}", *pid],
        }
        yield {
            name: stack.enter_context(closing(Worker(command, plain_environment())))
            for name, command in commands.items()
        }


@contextmanager
def serve(dtype: str) -> Iterator[Server]:
    """`headstart serve` on free ports, ready."""
    ports = [f"--{kind}=0" for kind in ("port", "health-port", "http-port", "metrics-port")]
    command = [sys.executable, "-m", "headstart", "serve", "--device", "cpu", "--dtype", dtype, "--host", "127.0.0.1"]
    with subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True, env=plain_environment()) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := READY.search(line):
                    yield Server(process.pid, int(found[1]), int(found[2]))
                    break
            else:
                raise RuntimeError("headstart serve ended before it was ready")
        finally:
            process.kill()


def report(rows: dict[str, dict[str, list[dict[str, float]]]], workloads: list[str]) -> None:
    medians = {name: {kind: median_row(each) for kind, each in kinds.items()} for name, kinds in rows.items()}
    losses = {
        f"{workload} {name}": loss(rows[IN_PROCESS][workload], rows[name][workload])
        for workload in workloads
        for name in (GRPC, HTTP)
    }
    print_result(
        {"medians": medians, "loss": losses},
        title="tokens a second, whole run",
        columns=("", *rows, f"loss {GRPC}", f"loss {HTTP}"),
        rows=[
            (
                workload,
                *(f"{medians[name][workload]['output_tok_s']:.1f}" for name in rows),
                *(f"{losses[f'{workload} {name}']:.1%}" for name in (GRPC, HTTP)),
            )
            for workload in workloads
        ],
        note="\n".join(disturbed_lines(rows)),
    )


def loss(without: list[dict[str, float]], through: list[dict[str, float]]) -> float:
    """The share of output tokens a second that is gone."""
    ratios = [its["output_tok_s"] / alone["output_tok_s"] for alone, its in zip(without, through, strict=True)]
    return round(1.0 - statistics.median(ratios), 4)


if __name__ == "__main__":
    main()
