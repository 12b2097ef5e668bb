"""llama.cpp on the workloads that its `llama-batched-bench` can play, one process a row.

That program times prompts and generation apart and samples nothing, so its figures have no first tokens and no gaps.
W4 is played without the 64 tokens that are each request's own: in llama.cpp's favour. W5 it cannot play.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from peer_rows import Row

_ARGUMENTS = {
    "W1": ("-npp", "32", "-ntg", "256", "-npl", "1"),
    "W2": ("-npp", "128", "-ntg", "128", "-npl", "16"),
    "W3": ("-npp", "1024", "-ntg", "1", "-npl", "8"),
    "W4c": ("-npp", "1024", "-ntg", "16", "-npl", "32", "-pps", "-kvu"),
}
WORKLOADS = frozenset(_ARGUMENTS)


def command_for(program: Path, model: Path, workload: str, num_threads: int) -> list[str]:
    shape = ("-t", str(num_threads), "-c", "9216", "-b", "2048", "-ub", "512", "-fa", "on")
    return [str(program), "-m", str(model), *shape, "--output-format", "jsonl", *_ARGUMENTS[workload]]


def measure(program: Path, model: Path, workload: str, num_threads: int) -> Row:
    """Raises RuntimeError with the program's last words."""
    start_s = time.perf_counter()
    command = command_for(program, model, workload, num_threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return read_row(done.stdout) | {"process_s": round(time.perf_counter() - start_s, 2)}


def read_row(printed: str) -> Row:
    """Its line of figures, under the workloads' keys."""
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    figures = json.loads(line)
    return {
        "prefill_tok_s": round(figures["speed_pp"], 2),
        "decode_tok_s": round(figures["speed_tg"], 2),
        "wall_s": round(figures["t"], 4),
        "ttft_ms_p50": round(figures["t_pp"] * 1e3, 3),
    }
