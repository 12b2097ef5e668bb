"""`headstart route`: the operator until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import typing
from pathlib import Path

from headstart.cli.flags import OPERATOR_SECTIONS, add_settings_flags, settings_from
from headstart.cli.progress import teller
from headstart.config import DEFAULT_SECRETS_DIR, Settings
from headstart.edge.keys import first_key
from headstart.settings_file import read_secret, secret_files

if typing.TYPE_CHECKING:
    from headstart_operator.config import OperatorConfig


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "SIGTERM drains: requests are still taken for a delay, then only finished. Ctrl-C does it without the delay. "
        "A second signal ends it at once."
    )
    add_settings_flags(parser, sections=OPERATOR_SECTIONS)


def run(parsed: argparse.Namespace) -> int:
    settings = settings_from(parsed)
    # The first process of a container has no default for it: until the router listens, a signal would be lost.
    signal.signal(signal.SIGTERM, _exit_at_once)
    # The operator is imported only now: wrong settings are answered at once, and pods need not have it.
    from headstart_operator.app import Operator, serve

    from headstart.telemetry.logs import set_up_logging

    config = operator_config(settings, key_source=_key_source(parsed.secrets_dir))
    is_json = settings.telemetry.log_format == "json"
    set_up_logging(level=settings.telemetry.log_level, is_json=is_json)
    tell = teller(is_json=is_json)

    def say_ready(operator: Operator) -> None:
        num_pods = len(operator.fleet.snapshot())
        tell(
            f"routing to {num_pods} pods, gRPC on port {operator.grpc_port}, "
            f"health on {operator.health_port}, HTTP on {operator.web.http_port}, "
            f"metrics on {operator.web.metrics_port}"
        )

    return asyncio.run(serve(config, on_ready=say_ready))


def _exit_at_once(number: int, frame: object) -> None:  # noqa: ARG001 the signature is the signal module's
    raise SystemExit(0)


def operator_config(settings: Settings, *, key_source: Path | None = None) -> OperatorConfig:
    """The operator's part of the settings. `key_source` is a file that may hold its key. Raises ConfigError."""
    from headstart_operator.config import OperatorConfig, parse_endpoints
    from headstart_operator.decision.admission import QueueLimits
    from headstart_operator.decision.score import Policy
    from headstart_operator.pods.connection import PodAccess

    from headstart.app.entrance import entrance_options

    chosen, server = settings.operator, settings.server
    key = first_key(chosen.pod_key.get_secret_value())
    return OperatorConfig(
        endpoints=parse_endpoints(chosen.endpoints),
        namespace=chosen.namespace,
        selector=chosen.selector,
        pool_selector=chosen.pool_selector,
        default_pool=chosen.default_pool,
        default_pool_owner=chosen.default_pool_owner,
        lease=chosen.lease,
        pod_port=chosen.pod_port,
        kube_api=chosen.kube_api,
        policy=Policy(chosen.policy),
        fleet_secret=settings.cache.hash_seed.get_secret_value().encode(),
        pod_access=PodAccess(
            key=key,
            key_source=str(key_source) if key_source is not None and _holds(key_source, key) else "",
            ca_file=chosen.pod_tls.ca_file,
            cert_file=chosen.pod_tls.cert_file,
            key_file=chosen.pod_tls.key_file,
            server_name=chosen.pod_tls.server_name,
        ),
        entrance=entrance_options(server),
        queue_limits=QueueLimits(
            max_requests=chosen.max_queued_requests,
            max_tokens=chosen.max_queued_tokens,
            max_requests_per_tenant=chosen.max_queued_per_tenant,
        ),
        max_prompt_bytes=settings.limits.max_prompt_bytes,
        host=server.host,
        grpc_port=server.grpc_port,
        health_port=server.health_port,
        http_port=server.http_port,
        metrics_port=server.metrics_port,
        otlp_endpoint=settings.telemetry.otlp_endpoint,
        captures_content=settings.telemetry.capture_content,
        drain_delay_s=server.drain_delay_s,
        drain_timeout_s=server.drain_timeout_s,
    )


def _key_source(secrets_dir: str | None) -> Path | None:
    return secret_files(Path(secrets_dir or DEFAULT_SECRETS_DIR)).get("operator.pod_key")


def _holds(path: Path, key: str) -> bool:
    """Whether the key in effect is that of the file: a variable would win over it, and then the file says nothing."""
    return bool(key) and first_key(read_secret(path)) == key
