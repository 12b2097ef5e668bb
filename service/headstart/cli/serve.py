"""`headstart serve`: one pod until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from headstart.app.loading import THREAD_NAME, ModelLoading
from headstart.cli.flags import add_settings_flags, settings_from
from headstart.cli.progress import LoadProgress, teller
from headstart.config import Settings
from headstart.errors import HeadstartError
from headstart.telemetry.logs import set_up_logging

if TYPE_CHECKING:
    from headstart.app.pod import Pod


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "SIGTERM drains: new work is refused after a delay, running requests may finish. Ctrl-C does it without the "
        "delay. A second signal, or one while the model loads, ends it at once. The exit code is 0 in all these cases."
    )
    add_settings_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    settings = settings_from(parsed)
    # The first process of a container has no default for it: until the pod listens, a signal would be lost.
    signal.signal(signal.SIGTERM, _exit_at_once)
    is_json = settings.telemetry.log_format == "json"
    set_up_logging(level=settings.telemetry.log_level, is_json=is_json)
    # Nothing that imports leave behind is worth looking through until the pod is ready.
    gc.disable()
    with LoadProgress(is_json=is_json) as progress:
        code = _serve(settings, progress, teller(is_json=is_json))
    return _leave(code)


def _serve(settings: Settings, progress: LoadProgress, tell: Callable[[str], None]) -> int:
    """The exit code, however it ends: the thread that loads may still be at work."""

    def say_ready(pod: Pod) -> None:
        gc.enable()
        progress.close()
        ports = f"gRPC on port {pod.grpc_port}, health on {pod.health_port}, HTTP on {pod.http_port}"
        tell(f"ready, {ports}, metrics on {pod.metrics_port}")

    loading = ModelLoading(settings, progress.show)
    try:
        # The servers are a second of imports: they are made while the model is read.
        from headstart.app.pod import serve

        return asyncio.run(serve(settings, loading, progress=progress.show, on_ready=say_ready))
    except HeadstartError as error:
        progress.close()
        print(f"headstart: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit:
        return 0


def _exit_at_once(number: int, frame: object) -> None:  # noqa: ARG001 the signature is the signal module's
    raise SystemExit(0)


def _leave(code: int) -> int:
    """`code`, unless a thread is left behind in the middle of native code: the interpreter must not end under it."""
    if any(thread.name in (THREAD_NAME, "engine") for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
