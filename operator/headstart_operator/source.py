"""Chooses where pods are found, from what the operator was started with, and what else is to be done there.

A fixed list needs nothing; pods by selector are followed; with EnginePools one of the operators also writes what it
knows of them. Owner of the tasks that are started here: the operator that starts and closes its source.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.edge.names import pod_name
from headstart.errors import ConfigError

from headstart_operator.config import OperatorConfig
from headstart_operator.decision.pool import Pool, Pools
from headstart_operator.pods.fixed import StaticPods
from headstart_operator.pods.fleet import Fleet, PodSource
from headstart_operator.supervisor import keep_running

if TYPE_CHECKING:
    from headstart_operator.kube.client import KubeClient
    from headstart_operator.kube.default import DefaultPool
    from headstart_operator.kube.keeper import PoolKeeper
    from headstart_operator.kube.lease import Lease

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


async def _nothing() -> None:
    """A fixed list has nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duties:
    """What a follower of EnginePools does besides."""

    lease: Lease
    keeper: PoolKeeper


@dataclass(slots=True, kw_only=True)
class Source:
    """Where pods come from. `start` what is to be done besides, `stop` it, and `close` when nobody follows any more."""

    pods: PodSource
    pools: Pools
    close: Callable[[], Awaitable[None]] = _nothing
    duties: _Duties | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def start(self, fleet: Fleet) -> None:
        """Begin to compete for the Lease and, while it is held, to write."""
        if self.duties is not None:
            self._tasks = [
                asyncio.create_task(keep_running(self.duties.lease.run, "competing for the Lease")),
                asyncio.create_task(keep_running(partial(self.duties.keeper.run, fleet), "writing of EnginePools")),
            ]

    async def stop(self) -> None:
        """Write nothing from now on, and let another operator write at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.duties is not None:
            await self.duties.lease.release()


def open_source(config: OperatorConfig, *, namespace_file: Path = _NAMESPACE_FILE) -> Source:
    """Raises ConfigError that says what is missing."""
    if config.endpoints:
        return Source(pods=StaticPods(config.endpoints), pools=Pools(policy=config.policy))
    # Only now: the client is large, and one machine needs none.
    try:
        from kubernetes.config import ConfigException
    except ImportError:
        raise ConfigError(
            "operator.endpoints: name the pods; to find them in Kubernetes, install the extra 'kubernetes'"
        ) from None

    from headstart_operator.kube.client import KubeClient, load_credentials

    try:
        load_credentials(config.kube_api)
    except ConfigException as error:
        raise ConfigError(
            f"operator.endpoints: name the pods, for there is no way into a cluster to find them ({error})"
        ) from None
    kube = KubeClient(lambda: load_credentials(config.kube_api))
    namespace = config.namespace or _own_namespace(namespace_file)
    if config.selector and not config.default_pool:
        from headstart_operator.kube.pods import KubernetesPods

        pool = Pool(name="", selector=config.selector, port=config.pod_port)
        pods = KubernetesPods(kube, pool, namespace=namespace)
        return Source(pods=pods, pools=Pools(policy=config.policy), close=kube.close)
    return _pools_source(config, kube, namespace)


def _pools_source(config: OperatorConfig, kube: KubeClient, namespace: str) -> Source:
    from headstart_operator.kube.events import EventRecorder
    from headstart_operator.kube.keeper import PoolKeeper
    from headstart_operator.kube.lease import Lease
    from headstart_operator.kube.pools import KubernetesPools

    identity = f"{pod_name(os.environ)}_{secrets.token_hex(4)}"
    pods = KubernetesPools(kube, namespace=namespace, selector=config.pool_selector, lasting=config.default_pool)
    lease = Lease(kube, namespace=namespace, name=config.lease, identity=identity, deployment=config.default_pool_owner)
    events = EventRecorder(kube, namespace=namespace, instance=identity)
    keeper = PoolKeeper(kube, lease, pods, events, default=_default_pool(config))
    return Source(
        pods=pods,
        pools=Pools(by_name=pods.pools, policy=config.policy),
        close=kube.close,
        duties=_Duties(lease=lease, keeper=keeper),
    )


def _default_pool(config: OperatorConfig) -> DefaultPool | None:
    """Raises ConfigError for selectors that cannot be written as labels."""
    if not config.default_pool:
        return None
    from headstart_operator.kube.default import DefaultPool
    from headstart_operator.kube.selector import match_labels

    try:
        labels = match_labels(config.selector)
    except ValueError as error:
        raise ConfigError(f"operator.selector: {error}; the default pool needs labels, as in app=engine") from None
    try:
        own = match_labels(config.pool_selector) if config.pool_selector else {}
    except ValueError as error:
        raise ConfigError(f"operator.pool_selector: {error}; the default pool must have its labels") from None
    spec = {
        "selector": {"matchLabels": labels},
        "port": config.pod_port,
        "routing": {"policy": str(config.policy)},
    }
    return DefaultPool(name=config.default_pool, spec=spec, labels=own, deployment=config.default_pool_owner)


def _own_namespace(path: Path) -> str:
    try:
        return path.read_text().strip() or "default"
    except OSError:
        return "default"
