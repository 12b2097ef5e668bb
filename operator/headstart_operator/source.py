"""Chooses where pods are found, from what the operator was started with. Holds no state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from headstart.errors import ConfigError

from headstart_operator.config import OperatorConfig
from headstart_operator.fleet import PodSource
from headstart_operator.pods import StaticPods

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def _nothing() -> None:
    """A fixed list has nothing to close."""


def open_source(
    config: OperatorConfig, *, namespace_file: Path = _NAMESPACE_FILE
) -> tuple[PodSource, Callable[[], Awaitable[None]]]:
    """The source, and what closes it. Raises ConfigError that says what is missing."""
    if config.endpoints:
        return StaticPods(config.endpoints), _nothing
    if not config.selector:
        raise ConfigError("operator.selector: set it to the pods' labels, or name the pods with operator.endpoints")
    # Only now: the client is large, and one machine needs none.
    from kubernetes.config import ConfigException

    from headstart_operator.kube_client import KubeClient, load_credentials
    from headstart_operator.kube_pods import KubernetesPods

    try:
        load_credentials(config.kube_api)
    except ConfigException as error:
        raise ConfigError(f"operator.kube_api: no way into a cluster was found: {error}") from None
    kube = KubeClient(lambda: load_credentials(config.kube_api))
    namespace = config.namespace or _own_namespace(namespace_file)
    pods = KubernetesPods(kube, namespace=namespace, selector=config.selector, port=config.pod_port)
    return pods, kube.close


def _own_namespace(path: Path) -> str:
    try:
        return path.read_text().strip() or "default"
    except OSError:
        return "default"
