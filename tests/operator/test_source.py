"""Where pods are looked for, by what the operator was started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from headstart.errors import ConfigError
from headstart_operator.config import OperatorConfig
from headstart_operator.decision.score import Policy
from headstart_operator.kube.pods import KubernetesPods
from headstart_operator.kube.pools import KubernetesPools
from headstart_operator.pods.fixed import StaticPods
from headstart_operator.source import open_source

_API = "http://127.0.0.1:1"


def test_endpoints_win_over_everything_else() -> None:
    source = open_source(OperatorConfig(endpoints=("a:1",), selector="app=x", policy=Policy.ROUND_ROBIN))
    assert isinstance(source.pods, StaticPods)
    assert source.pools.policy_of("") is Policy.ROUND_ROBIN


async def test_a_selector_alone_needs_no_pools_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models\n")
    config = OperatorConfig(selector="app=engine", kube_api=_API, policy=Policy.LEAST_LOADED)
    source = open_source(config, namespace_file=tmp_path / "namespace")
    assert isinstance(source.pods, KubernetesPods)
    assert vars(source.pods)["_informer"]._path == "/api/v1/namespaces/models/pods"
    assert (source.pools.policy_of(""), source.duties) == (Policy.LEAST_LOADED, None)
    await source.close()


@pytest.mark.parametrize("settings", [{}, {"default_pool": "chat", "selector": "app=engine"}])
async def test_without_a_selector_or_with_a_default_pool_pools_are_followed(settings: dict[str, str]) -> None:
    source = open_source(OperatorConfig(kube_api=_API, namespace="models", **settings))  # type: ignore[arg-type]
    assert isinstance(source.pods, KubernetesPools)
    assert source.pods.namespace == "models"
    assert vars(source.pods)["_lasting"] == settings.get("default_pool", "")
    assert source.duties is not None
    await source.close()


def test_without_a_cluster_the_endpoints_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"operator\.endpoints"):
        open_source(OperatorConfig())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"selector": ""}, r"operator\.selector"),
        ({"selector": "app in (a,b)"}, r"operator\.selector"),
        ({"selector": "app=a", "pool_selector": "!x"}, r"operator\.pool_selector"),
    ],
)
def test_a_default_pool_needs_labels(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_source(OperatorConfig(kube_api=_API, default_pool="chat", **settings))  # type: ignore[arg-type]
