"""What the values of scaling, doors, the router, its rights and network policies change."""

from __future__ import annotations

from support.value_case import (
    ABSENT,
    ENGINE,
    OPERATOR_POD,
    OPERATOR_SETTINGS,
    Case,
)

_HPA = {"autoscaling.hpa.enabled": True}
_KEDA = {"autoscaling.keda.enabled": True, "autoscaling.keda.serverAddress": "http://p"}
_ROUTE = {"gateway.grpcRoute.enabled": True, "gateway.grpcRoute.parentRefs": [{"name": "g"}]}
_INGRESS = {"ingress.enabled": True}
_TLS = {"server.tls.enabled": True, "server.tls.existingSecret": "t"}
_OTLP = {"telemetry.otlp.endpoint": "http://c:4317", "telemetry.traces.enabled": True}
_HF = {"model.source.type": "hf", "model.source.uri": "org/name"}

_AWAY = {"replicaCount": 0, "operator.defaultPool.create": False}

_SCALER = ("HorizontalPodAutoscaler", "engine", "spec")
_SCALED = ("ScaledObject", "engine", "spec")
_TRIGGER = (*_SCALED, "triggers", "0", "metadata")
_SERVICE = ("Service", "", "spec")
_IN_ENGINE = ("NetworkPolicy", "engine", "spec", "ingress")
_OUT_ENGINE = ("NetworkPolicy", "engine", "spec", "egress")
_IN_OPERATOR = ("NetworkPolicy", "operator", "spec", "ingress")
_OUT_OPERATOR = ("NetworkPolicy", "operator", "spec", "egress")
_PEER = [{"podSelector": {"matchLabels": {"a": "b"}}}]
_RULE = {"ports": [{"port": 77}]}

SCALING: dict[str, Case] = {
    "autoscaling.hpa.enabled": Case(True, (*ENGINE, "replicas"), ABSENT),
    "autoscaling.hpa.minReplicas": Case(2, (*_SCALER, "minReplicas"), 2, _HPA),
    "autoscaling.hpa.maxReplicas": Case(9, (*_SCALER, "maxReplicas"), 9, _HPA),
    "autoscaling.hpa.metricName": Case("m", (*_SCALER, "metrics", "0", "pods", "metric", "name"), "m", _HPA),
    "autoscaling.hpa.targetAverageValue": Case(
        "7", (*_SCALER, "metrics", "0", "pods", "target", "averageValue"), "7", _HPA
    ),
    "autoscaling.hpa.metrics": Case([{"type": "X"}], (*_SCALER, "metrics"), [{"type": "X"}], _HPA),
    "autoscaling.hpa.behavior": Case({"scaleUp": {"x": 1}}, (*_SCALER, "behavior", "scaleUp"), {"x": 1}, _HPA),
    "autoscaling.keda.enabled": Case(
        True,
        (*_SCALED, "scaleTargetRef", "name"),
        "rel-headstart-engine",
        {"autoscaling.keda.serverAddress": "http://p"},
    ),
    "autoscaling.keda.minReplicas": Case(2, (*_SCALED, "minReplicaCount"), 2, _KEDA),
    "autoscaling.keda.maxReplicas": Case(9, (*_SCALED, "maxReplicaCount"), 9, _KEDA),
    "autoscaling.keda.serverAddress": Case(
        "http://q", (*_TRIGGER, "serverAddress"), "http://q", {"autoscaling.keda.enabled": True}
    ),
    "autoscaling.keda.query": Case("up", (*_TRIGGER, "query"), "up", _KEDA),
    "autoscaling.keda.threshold": Case("8", (*_TRIGGER, "threshold"), "8", _KEDA),
    "autoscaling.keda.pollingInterval": Case(5, (*_SCALED, "pollingInterval"), 5, _KEDA),
    "autoscaling.keda.behavior": Case(
        {"scaleUp": {"x": 1}},
        (*_SCALED, "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp"),
        {"x": 1},
        _KEDA,
    ),
}

DOORS: dict[str, Case] = {
    "service.type": Case("LoadBalancer", (*_SERVICE, "type"), "LoadBalancer"),
    "service.ports.grpc": Case(443, (*_SERVICE, "ports", "grpc", "port"), 443),
    "service.ports.http": Case(80, (*_SERVICE, "ports", "http", "port"), 80),
    "service.appProtocol": Case("grpc", (*_SERVICE, "ports", "grpc", "appProtocol"), "grpc"),
    "service.annotations": Case({"a": "b"}, ("Service", "", "metadata", "annotations"), {"a": "b"}),
    "service.labels": Case({"a": "b"}, ("Service", "", "metadata", "labels", "a"), "b"),
    "service.loadBalancerSourceRanges": Case(
        ["10.0.0.0/8"], (*_SERVICE, "loadBalancerSourceRanges"), ["10.0.0.0/8"], {"service.type": "LoadBalancer"}
    ),
    "service.externalTrafficPolicy": Case(
        "Local", (*_SERVICE, "externalTrafficPolicy"), "Local", {"service.type": "NodePort"}
    ),
    "gateway.grpcRoute.enabled": Case(
        True,
        ("GRPCRoute", "", "spec", "rules"),
        [{"backendRefs": [{"name": "rel-headstart", "port": 50051}]}],
        {"gateway.grpcRoute.parentRefs": [{"name": "g"}]},
    ),
    "gateway.grpcRoute.parentRefs": Case(
        [{"name": "h"}], ("GRPCRoute", "", "spec", "parentRefs"), [{"name": "h"}], {"gateway.grpcRoute.enabled": True}
    ),
    "gateway.grpcRoute.hostnames": Case(["h"], ("GRPCRoute", "", "spec", "hostnames"), ["h"], _ROUTE),
    "gateway.grpcRoute.rules": Case([{"x": 1}], ("GRPCRoute", "", "spec", "rules"), [{"x": 1}], _ROUTE),
    "ingress.enabled": Case(True, ("Ingress", "", "spec", "rules", "0", "http", "paths", "0", "path"), "/"),
    "ingress.className": Case("nginx", ("Ingress", "", "spec", "ingressClassName"), "nginx", _INGRESS),
    "ingress.annotations": Case({"a": "b"}, ("Ingress", "", "metadata", "annotations"), {"a": "b"}, _INGRESS),
    "ingress.port": Case(
        "grpc",
        ("Ingress", "", "spec", "rules", "0", "http", "paths", "0", "backend", "service", "port", "name"),
        "grpc",
        _INGRESS,
    ),
    "ingress.hosts": Case(["h"], ("Ingress", "", "spec", "rules", "0", "host"), "h", _INGRESS),
    "ingress.tls": Case([{"secretName": "s"}], ("Ingress", "", "spec", "tls"), [{"secretName": "s"}], _INGRESS),
}

ROUTER: dict[str, Case] = {
    "operator.enabled": Case(False, (*_SERVICE, "selector", "app.kubernetes.io/component"), "engine"),
    "operator.settings": Case({"policy": "round-robin"}, (*OPERATOR_SETTINGS, "operator", "policy"), "round-robin"),
    "operator.watchNamespace": Case("other", ("Role", "operator", "metadata", "namespace"), "other", _AWAY),
    "operator.poolSelector": Case("a=b", (*OPERATOR_SETTINGS, "operator", "pool_selector"), "a=b"),
    "operator.defaultPool.create": Case(False, (*OPERATOR_SETTINGS, "operator", "default_pool"), ABSENT),
    "operator.defaultPool.name": Case("chat", (*OPERATOR_SETTINGS, "operator", "default_pool"), "chat"),
    "operator.tls.existingSecret": Case("o", (*OPERATOR_POD, "volumes", "tls", "secret", "secretName"), "o", _TLS),
    "rbac.create": Case(False, ("RoleBinding", "operator"), ABSENT),
    "crds.install": Case(False, ("CustomResourceDefinition", "enginepools.headstart.dev"), ABSENT),
    "crds.keep": Case(
        False,
        ("CustomResourceDefinition", "enginepools.headstart.dev", "metadata", "annotations"),
        ABSENT,
    ),
}

NETWORK: dict[str, Case] = {
    "networkPolicy.enabled": Case(False, ("NetworkPolicy", "engine"), ABSENT),
    "networkPolicy.clients": Case(_PEER, (*_IN_OPERATOR, "0", "from", "0"), _PEER[0]),
    "networkPolicy.engineClients": Case(_PEER, (*_IN_ENGINE, "1", "from"), _PEER),
    "networkPolicy.scrapers": Case(_PEER, (*_IN_ENGINE, "2", "from"), _PEER),
    "networkPolicy.apiServer.to": Case(_PEER, (*_OUT_OPERATOR, "1", "to"), _PEER),
    "networkPolicy.apiServer.ports": Case([8443], (*_OUT_OPERATOR, "1", "ports", "0", "port"), 8443),
    "networkPolicy.dns.to": Case(_PEER, (*_OUT_OPERATOR, "2", "to"), _PEER),
    "networkPolicy.dns.ports": Case([5353], (*_OUT_OPERATOR, "2", "ports", "1", "port"), 5353),
    "networkPolicy.otlp.to": Case(_PEER, (*_OUT_ENGINE, "0", "to"), _PEER, _OTLP),
    "networkPolicy.otlp.ports": Case([55], (*_OUT_OPERATOR, "2", "ports", "1", "port"), 55, _OTLP),
    "networkPolicy.hub.to": Case(_PEER, (*_OUT_ENGINE, "0", "to"), _PEER, _HF),
    "networkPolicy.hub.ports": Case([55], (*_OUT_ENGINE, "0", "ports", "0", "port"), 55, _HF),
    "networkPolicy.engineIngress": Case([_RULE], (*_IN_ENGINE, "3"), _RULE),
    "networkPolicy.engineEgress": Case([_RULE], (*_OUT_ENGINE, "0"), _RULE),
    "networkPolicy.operatorIngress": Case([_RULE], (*_IN_OPERATOR, "2"), _RULE),
    "networkPolicy.operatorEgress": Case([_RULE], (*_OUT_OPERATOR, "2"), _RULE),
}

CASES = SCALING | DOORS | ROUTER | NETWORK
