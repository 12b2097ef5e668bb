"""What an operator is started with: plain values, resolved by whoever starts it.

The settings tree, its flags and its environment belong to `headstart.config`; the command line maps them to this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.edge.entrance import EntranceOptions
from headstart.errors import ConfigError

from headstart_operator.decision.admission import QueueLimits
from headstart_operator.decision.score import Policy
from headstart_operator.pods.connection import PodAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConfig:
    """`endpoints` are host:port of pods; without them, pods come from Kubernetes.

    `selector` is a label selector in `namespace`, "" for the operator's own; `pod_port` is the pods' gRPC port. Without
    a selector EnginePools say which pods: those that `pool_selector` finds. A `default_pool` is made of `selector`,
    `pod_port` and `policy` when there is none of its name, and follows them while it belongs to the Deployment
    `default_pool_owner`, as `lease` does, which decides who writes. `kube_api` replaces the address of the API server.
    `fleet_secret` is what the pods mount as `cache.hash_seed`. `pod_access` is how the router comes in at the pods,
    `entrance` how clients come in here. A port of 0 picks a free one. `otlp_endpoint` is a collector; the standard
    OTEL_* variables win over it. `captures_content` puts prompts and answers into spans.
    """

    endpoints: tuple[str, ...] = ()
    namespace: str = ""
    selector: str = ""
    pool_selector: str = ""
    default_pool: str = ""
    default_pool_owner: str = ""
    lease: str = "headstart-operator"
    pod_port: int = 50051
    kube_api: str = ""
    policy: Policy = Policy.PREFIX
    fleet_secret: bytes = field(default=b"", repr=False)
    pod_access: PodAccess = field(default_factory=PodAccess)
    entrance: EntranceOptions = field(default_factory=EntranceOptions)
    queue_limits: QueueLimits = field(default_factory=QueueLimits)
    max_prompt_bytes: int = 4 << 20
    host: str = "0.0.0.0"
    grpc_port: int = 50051
    health_port: int = 50052
    http_port: int = 8000
    metrics_port: int = 9090
    otlp_endpoint: str | None = None
    captures_content: bool = False
    drain_delay_s: float = 10.0
    drain_timeout_s: float = 60.0


def parse_endpoints(text: str) -> tuple[str, ...]:
    """host:port,host:port in order, without repetitions. Raises ConfigError for one that has no port."""
    endpoints = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ConfigError(f"operator.endpoints: {endpoint!r} is not host:port")
    return endpoints
