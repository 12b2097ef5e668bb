"""What the values of model, settings, doors and telemetry change."""

from __future__ import annotations

from support.value_case import (
    ABSENT,
    ENGINE_CONTAINER,
    ENGINE_POD,
    ENGINE_SETTINGS,
    OPERATOR_CONTAINER,
    OPERATOR_POD,
    OPERATOR_SETTINGS,
    Case,
)

_HF = {"model.source.type": "hf", "model.source.uri": "org/name"}
_PVC = {"model.source.type": "pvc", "model.source.existingClaim": "c"}
_OCI = {"model.source.type": "oci", "model.source.uri": "r.example/m:1"}
_KEPT = _HF | {"model.persistence.enabled": True}
_TLS = {"server.tls.enabled": True, "server.tls.existingSecret": "t"}
_AUTH = {"server.auth.existingSecret": "k"}
_OTLP = {"telemetry.otlp.endpoint": "http://c:4317", "telemetry.traces.enabled": True}

_CLAIM = ("PersistentVolumeClaim", "model")
_DOWNLOAD = (*ENGINE_POD, "initContainers", "download")
_MODEL = (*ENGINE_POD, "volumes", "model")
_ENV = (*ENGINE_CONTAINER, "env")
_TLS_ITEMS = (*OPERATOR_POD, "volumes", "pod-tls", "secret", "items")

MODEL: dict[str, Case] = {
    "model.name": Case("m", (*ENGINE_SETTINGS, "model", "served_name"), "m"),
    "model.maxLen": Case(512, (*ENGINE_SETTINGS, "model", "max_len"), 512),
    "model.dtype": Case("quantized", (*ENGINE_SETTINGS, "model", "dtype"), "quantized"),
    "model.source.type": Case("path", (*ENGINE_SETTINGS, "model", "source"), "/mine", {"model.source.uri": "/mine"}),
    "model.source.uri": Case("a/b", (*ENGINE_SETTINGS, "model", "served_name"), "a/b", {"model.source.type": "hf"}),
    "model.source.revision": Case(
        "v1", (*_DOWNLOAD, "args"), ["download", "org/name", "--revision", "v1", "--to", "/models/org-name-v1"], _HF
    ),
    "model.source.existingClaim": Case(
        "c", (*_MODEL, "persistentVolumeClaim", "claimName"), "c", {"model.source.type": "pvc"}
    ),
    "model.source.subPath": Case("a/b.gguf", (*ENGINE_SETTINGS, "model", "source"), "/models/a/b.gguf", _PVC),
    "model.source.readOnly": Case(False, (*_MODEL, "persistentVolumeClaim", "readOnly"), False, _PVC),
    "model.source.pullPolicy": Case("Always", (*_MODEL, "image", "pullPolicy"), "Always", _OCI),
    "model.persistence.enabled": Case(
        True, (*_MODEL, "persistentVolumeClaim", "claimName"), "rel-headstart-model", _HF
    ),
    "model.persistence.size": Case("7Gi", (*_CLAIM, "spec", "resources", "requests", "storage"), "7Gi", _KEPT),
    "model.persistence.storageClass": Case("fast", (*_CLAIM, "spec", "storageClassName"), "fast", _KEPT),
    "model.persistence.accessModes": Case(
        ["ReadWriteMany"], (*_CLAIM, "spec", "accessModes"), ["ReadWriteMany"], _KEPT
    ),
    "model.persistence.existingClaim": Case("mine", (*_MODEL, "persistentVolumeClaim", "claimName"), "mine", _KEPT),
    "model.persistence.perReplica": Case(
        True, ("StatefulSet", "engine", "spec", "volumeClaimTemplates", "0", "metadata", "name"), "model", _KEPT
    ),
    "model.persistence.annotations": Case({"a": "b"}, (*_CLAIM, "metadata", "annotations"), {"a": "b"}, _KEPT),
    "model.hfToken.existingSecret": Case("s", (*_DOWNLOAD, "args", "5"), "/run/headstart/hf/token", _HF),
    "model.hfToken.key": Case(
        "k",
        (*ENGINE_POD, "volumes", "hf-token", "secret", "items", "0", "key"),
        "k",
        _HF | {"model.hfToken.existingSecret": "s"},
    ),
    "model.offline": Case(False, (*_ENV, "HF_HUB_OFFLINE"), ABSENT),
    "model.download.resources": Case({"limits": {"cpu": 1}}, (*_DOWNLOAD, "resources", "limits", "cpu"), 1, _HF),
    "model.download.sizeLimit": Case("7Gi", (*ENGINE_POD, "volumes", "model", "emptyDir", "sizeLimit"), "7Gi", _HF),
    "model.download.endpoint": Case("http://m", (*_DOWNLOAD, "env", "HF_ENDPOINT", "value"), "http://m", _HF),
    "engine": Case({"scheduler": {"max_num_seqs": 7}}, (*ENGINE_SETTINGS, "scheduler", "max_num_seqs"), 7),
    "hashSeed.existingSecret": Case(
        "s", (*OPERATOR_POD, "volumes", "secrets", "projected", "sources", "0", "secret", "name"), "s"
    ),
    "hashSeed.key": Case(
        "k",
        (*ENGINE_POD, "volumes", "secrets", "projected", "sources", "0", "secret", "items", "0"),
        {"key": "k", "path": "cache__hash_seed"},
        {"hashSeed.existingSecret": "s"},
    ),
}

SERVER: dict[str, Case] = {
    "server.host": Case("::", (*OPERATOR_SETTINGS, "server", "host"), "::"),
    "server.ports.grpc": Case(5001, (*OPERATOR_SETTINGS, "operator", "pod_port"), 5001),
    "server.ports.health": Case(5002, (*ENGINE_CONTAINER, "livenessProbe", "grpc", "port"), 5002),
    "server.ports.http": Case(5003, (*ENGINE_CONTAINER, "ports", "http", "containerPort"), 5003),
    "server.ports.metrics": Case(5004, (*ENGINE_SETTINGS, "server", "metrics_port"), 5004),
    "server.tls.enabled": Case(
        True,
        (*ENGINE_SETTINGS, "server", "tls", "cert_file"),
        "/run/headstart/tls/tls.crt",
        {"server.tls.existingSecret": "t"},
    ),
    "server.tls.existingSecret": Case(
        "t", (*ENGINE_POD, "volumes", "tls", "secret", "secretName"), "t", {"server.tls.enabled": True}
    ),
    "server.tls.caKey": Case("ca", (*_TLS_ITEMS, "0", "key"), "ca", _TLS),
    "server.tls.clientCAKey": Case("clients", (*_TLS_ITEMS, "1", "key"), "clients", _TLS),
    "server.tls.serverName": Case("n", (*OPERATOR_SETTINGS, "operator", "pod_tls", "server_name"), "n", _TLS),
    "server.auth.existingSecret": Case("k", (*ENGINE_SETTINGS, "server", "auth", "keys_dir"), "/run/headstart/keys"),
    "server.auth.routerTenant": Case(
        "r",
        (*OPERATOR_POD, "volumes", "secrets", "projected", "sources", "0", "secret", "items", "0"),
        {"key": "r", "path": "operator__pod_key"},
        _AUTH,
    ),
    "server.auth.adminTenants": Case(["a"], (*ENGINE_SETTINGS, "server", "auth", "admin_tenants"), "operator,a", _AUTH),
    "server.auth.shareCache": Case(True, (*OPERATOR_SETTINGS, "server", "auth", "share_cache"), True, _AUTH),
    "server.drain.delaySeconds": Case(1.5, (*ENGINE_SETTINGS, "server", "drain_delay_s"), 1.5),
    "server.drain.timeoutSeconds": Case(600, (*OPERATOR_POD, "terminationGracePeriodSeconds"), 620),
}

TELEMETRY: dict[str, Case] = {
    "telemetry.log.level": Case("debug", (*OPERATOR_SETTINGS, "telemetry", "log_level"), "debug"),
    "telemetry.log.format": Case("text", (*ENGINE_SETTINGS, "telemetry", "log_format"), "text"),
    "telemetry.otlp.endpoint": Case(
        "http://c:4317",
        (*_ENV, "OTEL_EXPORTER_OTLP_ENDPOINT", "value"),
        "http://c:4317",
        {"telemetry.traces.enabled": True},
    ),
    "telemetry.otlp.protocol": Case(
        "http/protobuf", (*_ENV, "OTEL_EXPORTER_OTLP_PROTOCOL", "value"), "http/protobuf", _OTLP
    ),
    "telemetry.otlp.headersSecret.name": Case(
        "s",
        (*OPERATOR_CONTAINER, "env", "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom", "secretKeyRef"),
        {"name": "s", "key": "headers"},
        _OTLP,
    ),
    "telemetry.otlp.headersSecret.key": Case(
        "k",
        (*_ENV, "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom", "secretKeyRef", "key"),
        "k",
        _OTLP | {"telemetry.otlp.headersSecret.name": "s"},
    ),
    "telemetry.traces.enabled": Case(
        True,
        (*_ENV, "OTEL_TRACES_EXPORTER", "value"),
        "otlp",
        {"telemetry.otlp.endpoint": "http://c:4317", "telemetry.metrics.otlp": True},
    ),
    "telemetry.traces.sampler": Case("always_on", (*_ENV, "OTEL_TRACES_SAMPLER", "value"), "always_on", _OTLP),
    "telemetry.traces.samplerArg": Case("0.5", (*_ENV, "OTEL_TRACES_SAMPLER_ARG", "value"), "0.5", _OTLP),
    "telemetry.traces.captureContent": Case(True, (*OPERATOR_SETTINGS, "telemetry", "capture_content"), True),
    "telemetry.metrics.otlp": Case(True, (*_ENV, "OTEL_METRICS_EXPORTER", "value"), "otlp", _OTLP),
    "telemetry.metrics.vllmNames": Case(True, (*ENGINE_SETTINGS, "telemetry", "vllm_metric_names"), True),
    "telemetry.resourceAttributes": Case(
        {"team": "a"},
        (*_ENV, "OTEL_RESOURCE_ATTRIBUTES", "value"),
        "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID),team=a",
        _OTLP,
    ),
}

CASES = MODEL | SERVER | TELEMETRY
