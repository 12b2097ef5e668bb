"""The EnginePool that an operator is started with: created when there is none of its name, and then left alone.

It belongs to the operator's Deployment, when that is named, and goes with it. Holds no state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from headstart_operator.kube_client import Json, KubeClient, KubeError
from headstart_operator.kube_owner import owner_references
from headstart_operator.kube_pools import API_VERSION, KIND, pools_path

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPool:
    """`labels` are its own; `deployment` is the name of its owner, "" for none."""

    name: str
    spec: Json
    labels: Mapping[str, str] = field(default_factory=dict)
    deployment: str = ""


async def create_default(kube: KubeClient, pool: DefaultPool, *, namespace: str) -> None:
    """Raises KubeError. One that is there already stays as it is."""
    owners = await owner_references(kube, pool.deployment, namespace=namespace, of=f"EnginePool {pool.name}")
    metadata = {"name": pool.name, "namespace": namespace, "labels": dict(pool.labels), "ownerReferences": owners}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": pool.spec}
    try:
        await kube.request("POST", pools_path(namespace), body=body)
        _LOGGER.info("EnginePool %s created", pool.name)
    except KubeError as error:
        if error.code != 409:
            raise
