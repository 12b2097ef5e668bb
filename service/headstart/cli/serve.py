"""`headstart serve`: one pod until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio

from rich.console import Console

from headstart.cli.flags import add_settings_flags, settings_from
from headstart.cli.progress import LoadProgress


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "SIGTERM drains: new work is refused after a delay, running requests may finish. A second one ends."
    add_settings_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    settings = settings_from(parsed)
    # Everything that a pod needs is imported only now: wrong settings are answered at once.
    from headstart.app.pod import Pod, serve

    console = Console(stderr=True)
    progress = LoadProgress(console)

    def say_ready(pod: Pod) -> None:
        progress.close()
        ports = f"gRPC on port {pod.grpc_port}, health on {pod.health_port}, HTTP on {pod.http_port}"
        console.print(f"headstart: ready, {ports}, metrics on {pod.metrics_port}", highlight=False)

    with progress:
        return asyncio.run(serve(settings, progress=progress.show, on_ready=say_ready))
