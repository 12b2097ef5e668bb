"""From the start of a process to its first token, and the most memory that it takes with 2 GiB of K/V.

    python tests/bench/compare_start.py [--models FOLDER --llamacpp FOLDER] [--reps 5] [--fill]

Both servers are asked over HTTP, again and again from their start on, for one token after 16. Next to ours stands what
its interpreter and imports take alone, both with bytecode as in an image. `--fill` also sends ours so many prompts that
every block of K/V has been written once: a minute or two each. vLLM's start is told by compare_peers.py. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare_peers import plain_environment
from headstart.cli.bench.output import print_result
from headstart.cli.bench.serve_load import peak_rss_mb
from headstart.cli.bench.serve_workloads import Ask, build
from peer_model import BF16

KV_BYTES = 2 << 30
KV_TOKENS = KV_BYTES // 23_040
"""K/V of a token of the built-in model takes 23,040 bytes in bfloat16."""
TIMEOUT_S = 300.0
POLL_S = 0.01
"""Between two askings: each takes a server that still loads some milliseconds."""
IMPORTS = "import headstart.cli.serve, headstart.app.pod, headstart.app.model, headstart.runner.native_runner"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="What peer_model.py wrote.")
    parser.add_argument("--llamacpp", type=Path, help="Folder of llama.cpp's programs.")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--fill", action="store_true", help="Write all of our K/V once, then tell the memory.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        report(measure(options, compiled_environment(bytecode)))


def measure(options: argparse.Namespace, environment: dict[str, str]) -> dict[str, list[dict[str, float]]]:
    results: dict[str, list[dict[str, float]]] = {}
    start(ours("bfloat16"), environment)  # compiles what it imports, and is not counted
    for number in range(options.reps):
        is_last = number == options.reps - 1
        results.setdefault("interpreter and imports", []).append({"seconds": import_seconds(environment)})
        for dtype in ("bfloat16", "quantized"):
            found = start(ours(dtype), environment, is_filled=options.fill and is_last)
            results.setdefault(f"headstart {dtype}", []).append(found)
        if options.llamacpp is not None:
            command = [str(options.llamacpp / "llama-server"), "-m", str(options.models / BF16), "-c", str(KV_TOKENS)]
            found = start([*command, "-fa", "on", "--port"], plain_environment())
            results.setdefault("llama.cpp bf16", []).append(found)
    return results


def compiled_environment(bytecode: str) -> dict[str, str]:
    """Ours, with a folder for bytecode: where none may be written, each start would compile every module again."""
    plain = {key: value for key, value in plain_environment().items() if key != "PYTHONDONTWRITEBYTECODE"}
    return plain | {"PYTHONPYCACHEPREFIX": bytecode, "HEADSTART_CACHE__MEMORY_BYTES": str(KV_BYTES)}


def ours(dtype: str) -> list[str]:
    ports = [f"--{kind}=0" for kind in ("port", "health-port", "metrics-port")]
    return [
        *(sys.executable, "-m", "headstart", "serve", "--device", "cpu", "--host", "127.0.0.1", "--dtype", dtype),
        *ports,
        "--http-port",
    ]


def import_seconds(environment: dict[str, str]) -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, env=environment)
    return time.perf_counter() - start_s


def start(command: Sequence[str], environment: dict[str, str], *, is_filled: bool = False) -> dict[str, float]:
    """Seconds until the first token, and MB at most. The command lacks the number of its HTTP port."""
    port = free_port()
    start_s = time.perf_counter()
    with subprocess.Popen(
        [*command, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            while not complete(port, list(range(1000, 1016)), 1):
                if process.poll() is not None or time.perf_counter() - start_s > TIMEOUT_S:
                    raise RuntimeError(f"{' '.join(command)} never answered")
                time.sleep(POLL_S)
            seconds = time.perf_counter() - start_s
            if is_filled:
                fill(port)
            return {"seconds": seconds, "rss_peak_mb": peak_rss_mb([process.pid])}
        finally:
            process.kill()


def fill(port: int) -> None:
    """Distinct prompts of as many tokens as K/V has places for."""
    for number in range(-(-KV_TOKENS // 4096) + 1):
        (long,) = [ask for ask in build("W5", f"fill/{number}").asks if ask.is_late]
        check_filled(port, long)


def check_filled(port: int, ask: Ask) -> None:
    if not complete(port, ask.prompt, 1):
        raise RuntimeError(f"{ask.name} got no answer")


def complete(port: int, token_ids: list[int], num_output: int) -> bool:
    """Whether POST /v1/completions was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    body: dict[str, Any] = {"prompt": token_ids, "max_tokens": num_output, "temperature": 0.0, "ignore_eos": True}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(results: dict[str, list[dict[str, float]]]) -> None:
    medians = {
        name: {key: round(statistics.median(each[key] for each in found), 3) for key in found[0]}
        for name, found in results.items()
    }
    for name, found in results.items():
        if "rss_peak_mb" in found[0]:
            medians[name]["rss_peak_mb"] = max(each["rss_peak_mb"] for each in found)
    print_result(
        medians,
        title=f"start to first token, {os.cpu_count()} cores",
        columns=("", "seconds", "peak MB"),
        rows=[
            (name, f"{figures['seconds']:.2f}", f"{figures.get('rss_peak_mb', 0):.0f}")
            for name, figures in medians.items()
        ],
    )


if __name__ == "__main__":
    main()
