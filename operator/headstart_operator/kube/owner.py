"""Who owns what an operator creates: its Deployment, so that all of it goes when that goes. Holds no state."""

from __future__ import annotations

import logging

from headstart_operator.kube.client import Json, KubeClient, KubeError

_LOGGER = logging.getLogger(__name__)


async def owner_references(kube: KubeClient, deployment: str, *, namespace: str, of: str) -> list[Json]:
    """For the metadata of `of`, as it is called in the log. Raises KubeError.

    None where no Deployment is named or it is not to be seen: what outlives its owner is better than nothing.
    """
    if not deployment:
        return []
    try:
        found = await kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
    except KubeError as error:
        if error.code not in (403, 404):
            raise
        _LOGGER.warning("Deployment %s cannot be read (%s): %s gets no owner", deployment, error, of)
        return []
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": found["metadata"]["uid"]}]
