"""`headstart demo`: one pod in this process, three requests through its gRPC port, and what happened inside."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from rich.console import Console

from headstart.cli.demo.scene import Outcome
from headstart.cli.demo.show import print_outcome
from headstart.cli.progress import LoadProgress
from headstart.config import Settings, load_settings

BUDGET = 256
# Small enough that a short round of other prompts fills it.
NUM_BLOCKS = 56
MAX_LEN = 768


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="Another model than the built-in one: a directory, a .gguf file or a hub id.")


def run(parsed: argparse.Namespace) -> int:
    outcome = asyncio.run(run_scene(demo_settings(parsed.model)))
    return 0 if print_outcome(Console(), outcome) else 1


def demo_settings(model: str | None = None) -> Settings:
    """A pod on free loopback ports with a small pool and budget; everything else as usual."""
    overrides: dict[str, Any] = {
        "device": "cpu",  # small enough for any machine, and only there are all its numbers exact
        "cache.num_blocks": NUM_BLOCKS,
        "model.max_len": MAX_LEN,
        "scheduler.max_num_batched_tokens": BUDGET,
        "scheduler.long_prefill_token_threshold": BUDGET // 2,
        "server.host": "127.0.0.1",
        "server.grpc_port": 0,
        "server.health_port": 0,
        "server.http_port": 0,
        "server.metrics_port": 0,
        "server.drain_delay_s": 0,
        "telemetry.log_level": "warning",
    }
    return load_settings(overrides | ({"model.source": model} if model else {}))


async def run_scene(settings: Settings) -> Outcome:
    """Start the pod, play, stop the pod. Progress goes to stderr."""
    # All that a pod needs is imported only now, so that --help is quick.
    from headstart.app.pod import start_pod
    from headstart.cli.demo.play import play

    errors = Console(stderr=True)
    with LoadProgress(errors) as progress:
        pod = await start_pod(settings, progress=progress.show, is_tracing=True)
    try:
        return await play(
            pod,
            budget=settings.scheduler.max_num_batched_tokens,
            tell=lambda line: errors.print(f"[dim]· {line}[/dim]"),
        )
    finally:
        await pod.stop()
