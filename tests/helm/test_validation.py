"""Values that each are right and cannot work together are refused when the chart is rendered, by the key to change."""

from __future__ import annotations

from typing import Any

import pytest
from support.helm import CHART, HelmError, render, run_helm
from support.value_case import values_of

Keys = dict[str, Any]

_HF: Keys = {"model.source.type": "hf", "model.source.uri": "org/name"}
_KEPT: Keys = _HF | {"model.persistence.enabled": True}
_GPU: Keys = {"accelerator.type": "nvidia", "accelerator.count": 1}
_HPA: Keys = {"autoscaling.hpa.enabled": True}
_KEDA: Keys = {"autoscaling.keda.enabled": True, "autoscaling.keda.serverAddress": "http://p"}

_REFUSED: list[tuple[str, Keys]] = [
    ("model.source.uri: say which", {"model.source.type": "hf"}),
    ("model.source.uri: has no meaning", {"model.source.uri": "org/name"}),
    ("model.source.uri: a b is no Hugging Face id", {"model.source.type": "hf", "model.source.uri": "a b"}),
    ("model.source.existingClaim: name the claim", {"model.source.type": "pvc"}),
    ("model.source.existingClaim: is for", {"model.source.existingClaim": "c"}),
    ("model.source.type: model.persistence", {"model.persistence.enabled": True}),
    ("model.source.subPath: is for", {"model.source.subPath": "x"}),
    (
        "model.persistence.existingClaim: cannot",
        _KEPT | {"model.persistence.perReplica": True, "model.persistence.existingClaim": "c"},
    ),
    ("model.persistence.accessModes: several pods", _KEPT | {"replicaCount": 2}),
    ("model.persistence.accessModes: several pods", _KEPT | _HPA),
    ("autoscaling.keda.enabled: not together", _HPA | _KEDA),
    ("autoscaling.keda.serverAddress: say where", {"autoscaling.keda.enabled": True}),
    ("autoscaling.hpa.minReplicas: 5 is more", _HPA | {"autoscaling.hpa.minReplicas": 5}),
    (
        "podDisruptionBudget.minAvailable: not together",
        {"podDisruptionBudget.minAvailable": 1, "podDisruptionBudget.maxUnavailable": 0},
    ),
    (
        "operator.podDisruptionBudget.minAvailable",
        {"operator.podDisruptionBudget.minAvailable": 1, "operator.podDisruptionBudget.maxUnavailable": 1},
    ),
    ("server.tls.existingSecret: name the Secret", {"server.tls.enabled": True}),
    ("server.tls.enabled: is false", {"server.tls.existingSecret": "t"}),
    ("server.tls.enabled: is false", {"operator.tls.existingSecret": "t"}),
    ("server.auth.existingSecret: name the Secret", {"server.auth.shareCache": True}),
    ("server.ports: two of them are the same", {"server.ports.http": 9090}),
    ("service.ports: grpc and http", {"service.ports.http": 50051}),
    ("gateway.grpcRoute.parentRefs: name", {"gateway.grpcRoute.enabled": True}),
    ("accelerator.count: must be 1", {"accelerator.type": "nvidia"}),
    ("accelerator.type: is cpu", {"accelerator.count": 1}),
    (
        "accelerator.dra.resourceClaimTemplateName: not together",
        _GPU | {"accelerator.dra.deviceClassName": "g", "accelerator.dra.resourceClaimTemplateName": "t"},
    ),
    ("engine.device: cuda needs", {"engine.device": "cuda"}),
    ("telemetry.otlp.endpoint: say where", {"telemetry.traces.enabled": True}),
    ("telemetry.traces.enabled: neither", {"telemetry.otlp.endpoint": "http://c:4317"}),
    ("operator.defaultPool.create: must be false", {"operator.watchNamespace": "other"}),
    ("operator.watchNamespace: the router would not find", {"operator.watchNamespace": "other"}),
    ("terminationGracePeriodSeconds: 70 cuts", {"terminationGracePeriodSeconds": 70}),
    ("operator.terminationGracePeriodSeconds: 30 cuts", {"operator.terminationGracePeriodSeconds": 30}),
    ("operator.podLabels: app.kubernetes.io/name is", {"operator.podLabels": {"app.kubernetes.io/name": "x"}}),
    ("extraEnv: POD_NAME is set", {"extraEnv": [{"name": "POD_NAME", "value": "x"}]}),
    ("operator.extraEnv: A is set", {"operator.extraEnv": [{"name": "A"}, {"name": "A"}]}),
    ("service.externalTrafficPolicy: is for", {"service.externalTrafficPolicy": "Local"}),
    ("sidecars: a container is named engine", {"sidecars": [{"name": "engine", "image": "i"}]}),
    ("operator.initContainers: a container", {"operator.initContainers": [{"name": "operator", "image": "i"}]}),
    ("extraVolumes: tmp is a volume's name", {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}),
    ("resources.limits.memory: 1.5Gi is below resources.requests.memory, 2Gi;", {"resources.limits.memory": "1.5Gi"}),
    ("operator.resources.limits.cpu: 10m is below", {"operator.resources.limits": {"cpu": "10m"}}),
    ("tests.resources.limits.memory: 1e6 is below", {"tests.resources.limits.memory": "1e6"}),
    ("model.download.resources.limits.memory: 1M is", _HF | {"model.download.resources.limits.memory": "1M"}),
    ("extraVolumeMounts: /tmp is taken", {"extraVolumeMounts": [{"name": "x", "mountPath": "/tmp"}]}),
]
_ACCEPTED: list[Keys] = [
    _KEPT | {"replicaCount": 2, "model.persistence.accessModes": ["ReadWriteMany"]},
    _KEPT | {"replicaCount": 2, "model.persistence.perReplica": True},
    _KEPT | {"model.persistence.existingClaim": "c"},
    {"terminationGracePeriodSeconds": 71},
    {"operator.extraEnv": [{"name": "HF_HUB_OFFLINE", "value": "0"}]},
    {"operator.watchNamespace": "other", "operator.defaultPool.create": False, "replicaCount": 0},
    {"podDisruptionBudget.minAvailable": 0},
    {"service.externalTrafficPolicy": "Local", "service.type": "NodePort"},
    {"operator.sidecars": [{"name": "engine", "image": "i"}], "operator.extraVolumes": [{"name": "model"}]},
    {"resources.limits.memory": None},
    {"model.download.resources.limits.memory": "1M"},
]


@pytest.mark.parametrize(("message", "keys"), _REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_it_is_refused_by_its_key(message: str, keys: Keys) -> None:
    with pytest.raises(HelmError) as refusal:
        render(values_of(keys))
    assert f"- {message}" in str(refusal.value)


@pytest.mark.parametrize("keys", _ACCEPTED, ids=lambda keys: " ".join(keys))
def test_its_neighbour_is_accepted(keys: Keys) -> None:
    assert render(values_of(keys))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("999m", 1),
        (0.5, "501m"),
        ("1k", "1.1e3"),
        ("1999M", "2G"),
        ("2G", "2Gi"),
        ("1023Ki", "1Mi"),
        ("1023Gi", "1Ti"),
        ("999G", "1T"),
        ("1E", "1Ei"),
        (17179869183, "16Gi"),
        ("15.9Gi", 17179869184),
    ],
)
def test_quantities_are_compared_in_whatever_units_they_are(less: Any, more: Any) -> None:
    both = {"resources.limits.memory": less, "resources.requests.memory": more}
    with pytest.raises(HelmError, match=r"- resources\.limits\.memory: "):
        render(values_of(both))
    render(values_of(dict(zip(both, (more, less), strict=True))))
    render(values_of(dict.fromkeys(both, more)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("server.ports.grpc=50052", "server.ports: two of them"),
        ("service.ports.http=50051", "service.ports: grpc and http"),
        ("accelerator.count=1", "accelerator.type: is cpu"),
        ("terminationGracePeriodSeconds=70", "terminationGracePeriodSeconds: 70 cuts"),
    ],
)
def test_a_number_of_the_command_line_is_compared_as_one_of_a_file(setting: str, message: str) -> None:
    with pytest.raises(HelmError, match=f"- {message}"):
        render(None, "--set", setting)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(HelmError) as refusal:
        render(values_of({"model.source.type": "pvc", "accelerator.count": 1}))
    assert str(refusal.value).count("\n- ") == 2


@pytest.mark.parametrize(
    ("version", "keys", "message"),
    [
        ("1.30", {"model.source.type": "oci", "model.source.uri": "m:1"}, "model.source.type: oci needs image volumes"),
        ("1.31", _GPU | {"accelerator.dra.deviceClassName": "g"}, "accelerator.dra: needs Kubernetes 1.32"),
    ],
)
def test_what_this_kubernetes_does_not_have_is_refused(version: str, keys: Keys, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render(values_of(keys), "--kube-version", version)


@pytest.mark.parametrize("release", ["7b", "a.b"])
def test_a_release_whose_name_no_service_can_have_needs_another(release: str) -> None:
    with pytest.raises(HelmError, match="- fullnameOverride: a Service cannot be named"):
        run_helm("template", release, CHART)
    assert run_helm("template", release, CHART, "--set", "fullnameOverride=chat")
