"""The EnginePool that an operator is started with: created when there is none of its name, and then left alone.

It belongs to the operator's Deployment, when that is named, and goes with it. Holds no state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from headstart_operator.kube_client import Json, KubeClient, KubeError
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
    metadata: Json = {"name": pool.name, "namespace": namespace, "labels": dict(pool.labels)}
    if pool.deployment:
        metadata["ownerReferences"] = await _owners(kube, pool.deployment, namespace)
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": pool.spec}
    try:
        await kube.request("POST", pools_path(namespace), body=body)
        _LOGGER.info("EnginePool %s created", pool.name)
    except KubeError as error:
        if error.code != 409:
            raise


async def _owners(kube: KubeClient, deployment: str, namespace: str) -> list[Json]:
    """None when the Deployment is not to be seen: a pool that outlives it is better than no pool."""
    try:
        found = await kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    except KubeError as error:
        if error.code not in (403, 404):
            raise
        _LOGGER.warning("Deployment %s cannot be read (%s): the default EnginePool gets no owner", deployment, error)
        return []
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": found["metadata"]["uid"]}]
