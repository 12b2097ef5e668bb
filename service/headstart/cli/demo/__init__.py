"""`headstart demo`: inside one pod with three requests, then two pods and a router with several tenants.

The one pod is in this process, so that its steps can be seen; the others are programs of their own.
"""

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
    parser.add_argument("--keep", action="store_true", help="Leave the pods and the router running until Ctrl-C.")


def run(parsed: argparse.Namespace) -> int:
    console = Console()
    console.rule("1. inside one pod")
    outcome = asyncio.run(run_scene(demo_settings(parsed.model)))
    has_held = print_outcome(console, outcome)
    console.print()
    console.rule("2. two pods and a router")
    has_held &= asyncio.run(run_fleet(console, model=parsed.model, served_name=outcome.model, is_kept=parsed.keep))
    return 0 if has_held else 1


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
        # The demo's own clients come without a key, whatever the user's pods ask for.
        **dict.fromkeys(("server.auth.keys_dir", "server.tls.cert_file", "server.tls.key_file"), ""),
        "server.tls.client_ca_file": "",
        "telemetry.log_level": "warning",
    }
    return load_settings(overrides | ({"model.source": model} if model else {}))


async def run_scene(settings: Settings) -> Outcome:
    """Start the pod, play, stop the pod. Progress goes to stderr."""
    # All that a pod needs is imported only now, so that --help is quick.
    from headstart.app.pod import start_pod
    from headstart.cli.demo.play import play

    with LoadProgress() as progress:
        pod = await start_pod(settings, progress=progress.show, is_tracing=True)
    try:
        return await play(
            pod,
            budget=settings.scheduler.max_num_batched_tokens,
            tell=tell,
        )
    finally:
        await pod.stop()


async def run_fleet(console: Console, *, model: str | None, served_name: str, is_kept: bool) -> bool:
    """Start pods and router, play both rounds, print; whether all held. With `is_kept` they run until a signal."""
    from headstart.cli.demo import fleet_show
    from headstart.cli.demo.fleet import empty, inexact_pods, play, start_fleet
    from headstart.cli.demo.fleet_scene import FleetOutcome
    from headstart.cli.demo.programs import Programs
    from headstart.edge.listening import stop_signals

    fleet_show.print_opening(console)
    async with Programs() as programs:
        fleet = await start_fleet(programs, model=model, tell=tell)
        tell("the requests go to the pods in turn, as from a plain load balancer")
        with fleet_show.growing_table(console, "round robin: the pods in turn") as show:
            in_turn = await play(fleet.pods, show)
        await empty(fleet)
        tell("the same requests, from empty caches, through the router")
        with fleet_show.growing_table(console, "the router: where the least work is left") as show:
            routed = await play([fleet.router], show)
        inexact = await inexact_pods(fleet.router)
        outcome = FleetOutcome(in_turn=in_turn, routed=routed, ended=fleet.ended, inexact=inexact)
        has_held = fleet_show.print_outcome(console, outcome)
        if is_kept:
            fleet_show.print_next_steps(console, fleet, served_name)
            with stop_signals() as signals:
                await signals.get()
    return has_held


def tell(line: str) -> None:
    """What happens next, on stderr."""
    Console(stderr=True).print(f"[dim]· {line}[/dim]", highlight=False)
