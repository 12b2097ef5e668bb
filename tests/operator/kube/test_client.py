"""Credentials are found as the official client finds them, and found again when they were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from headstart_operator.kube.client import KubeClient, KubeError
from kubernetes import client
from kubernetes.config.incluster_config import InClusterConfigLoader
from support.kube_server import KubeServer


def in_cluster(folder: Path, url: str) -> client.Configuration:
    """As in a pod, but for the scheme."""
    environ = {"KUBERNETES_SERVICE_HOST": "ignored", "KUBERNETES_SERVICE_PORT": "1"}
    found = client.Configuration()
    loader = InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"), environ=environ)
    loader.load_and_set(found)  # type: ignore[no-untyped-call]
    found.refresh_api_key_hook = None
    found.host = url
    return found


async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "token").write_text("first")
    async with KubeServer() as server:
        server.token = "first"
        kube = KubeClient(lambda: in_cluster(tmp_path, server.url))
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        server.token = "second"
        (tmp_path / "token").write_text("second")
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        server.token = "third"
        with pytest.raises(KubeError, match="401"):
            await kube.list_all("/api/v1/namespaces/ns/pods", {})
        await kube.close()


async def test_credentials_that_cannot_be_read_for_a_while_are_an_error_of_the_api_and_then_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "token").write_text("first")
    async with KubeServer() as server:
        server.token = "first"
        kube = KubeClient(lambda: in_cluster(tmp_path, server.url))
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        server.token = "second"
        (tmp_path / "token").write_text("")
        for _ in range(2):
            with pytest.raises(KubeError, match="0: the credentials cannot be read: Token file exists but empty"):
                await kube.list_all("/api/v1/namespaces/ns/pods", {})
        (tmp_path / "token").write_text("second")
        await kube.list_all("/api/v1/namespaces/ns/pods", {})
        await kube.close()
