"""What the values of pods change: those that engine pods and routers both have, and those of engine pods alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.value_case import (
    ABSENT,
    ENGINE,
    ENGINE_CONTAINER,
    ENGINE_POD,
    FULLNAME,
    OPERATOR,
    OPERATOR_CONTAINER,
    OPERATOR_POD,
    Case,
)

_PROBE = {"periodSeconds": 3, "timeoutSeconds": 2, "failureThreshold": 9}
_CONFIG_SOURCE = [{"configMapRef": {"name": "x"}}]
_MORE = {"name": "more", "emptyDir": {}}
_SPREAD = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}

# value, place in the pod's spec, what it reads
_IN_POD: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "podSecurityContext": ({"fsGroup": 7}, ("securityContext", "fsGroup"), 7),
    "scratch.sizeLimit": ("5Gi", ("volumes", "scratch", "emptyDir", "sizeLimit"), "5Gi"),
    "scratch.medium": ("Memory", ("volumes", "tmp", "emptyDir", "medium"), "Memory"),
    "nodeSelector": ({"zone": "a"}, ("nodeSelector", "zone"), "a"),
    "tolerations": ([{"key": "k", "operator": "Exists"}], ("tolerations", "0", "key"), "k"),
    "affinity": ({"nodeAffinity": {"x": 1}}, ("affinity",), {"nodeAffinity": {"x": 1}}),
    "topologySpreadConstraints": ([_SPREAD], ("topologySpreadConstraints",), [_SPREAD]),
    "priorityClassName": ("high", ("priorityClassName",), "high"),
    "schedulerName": ("mine", ("schedulerName",), "mine"),
    "runtimeClassName": ("nvidia", ("runtimeClassName",), "nvidia"),
    "hostAliases": ([{"ip": "1.2.3.4"}], ("hostAliases",), [{"ip": "1.2.3.4"}]),
    "dnsConfig": ({"options": []}, ("dnsConfig",), {"options": []}),
    "serviceAccount.name": ("mine", ("serviceAccountName",), "mine"),
    "extraVolumes": ([_MORE], ("volumes", "more"), _MORE),
    "initContainers": (
        [{"name": "first", "image": "i:{{ .Chart.AppVersion }}"}],
        ("initContainers", "first", "image"),
        "i:0.1.0",
    ),
    "sidecars": ([{"name": "beside", "image": "i:{{ .Release.Name }}"}], ("containers", "beside", "image"), "i:rel"),
    "terminationGracePeriodSeconds": (99, ("terminationGracePeriodSeconds",), 99),
}
# the same in the main container
_IN_CONTAINER: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "resources": ({"limits": {"memory": "3Gi"}}, ("resources", "limits", "memory"), "3Gi"),
    "securityContext": ({"runAsUser": 9}, ("securityContext", "runAsUser"), 9),
    "probes.startup": (_PROBE, ("startupProbe", "failureThreshold"), 9),
    "probes.liveness": (_PROBE, ("livenessProbe", "periodSeconds"), 3),
    "probes.readiness": (_PROBE, ("readinessProbe", "timeoutSeconds"), 2),
    "extraEnv": ([{"name": "X", "value": "y"}], ("env", "X", "value"), "y"),
    "extraEnvFrom": (_CONFIG_SOURCE, ("envFrom",), _CONFIG_SOURCE),
    "extraVolumeMounts": ([{"name": "more", "mountPath": "/more"}], ("volumeMounts", "more", "mountPath"), "/more"),
    "image.tag": ("9.9", ("image",), "REPOSITORY:9.9"),
    "image.digest": (f"sha256:{'a' * 64}", ("image",), f"REPOSITORY@sha256:{'a' * 64}"),
    "image.pullPolicy": ("Always", ("imagePullPolicy",), "Always"),
    "image.repository": ("mirror/it", ("image",), "mirror/it:0.1.0"),
}
# the same in the workload
_IN_WORKLOAD: dict[str, tuple[Any, tuple[str, ...], Any]] = {
    "replicaCount": (5, ("replicas",), 5),
    "updateStrategy": ({"type": "Recreate"}, ("strategy",), {"type": "Recreate"}),
    "revisionHistoryLimit": (7, ("revisionHistoryLimit",), 7),
    "minReadySeconds": (7, ("minReadySeconds",), 7),
    "progressDeadlineSeconds": (77, ("progressDeadlineSeconds",), 77),
    "podLabels": ({"team": "a"}, ("template", "metadata", "labels", "team"), "a"),
    "podAnnotations": ({"note": "a"}, ("template", "metadata", "annotations", "note"), "a"),
}


def _both() -> Iterator[tuple[str, Case]]:
    parts = (
        ("", "engine", "serve", "headstart/pod-cpu", ENGINE, ENGINE_POD, ENGINE_CONTAINER),
        ("operator.", "operator", "route", "headstart/operator", OPERATOR, OPERATOR_POD, OPERATOR_CONTAINER),
    )
    for prefix, name, command, repository, workload, pod, container in parts:
        for table, base in ((_IN_POD, pod), (_IN_CONTAINER, container), (_IN_WORKLOAD, workload)):
            for key, (value, place, expected) in table.items():
                if key == "image.tag" or key == "image.digest":
                    expected = expected.replace("REPOSITORY", repository)
                yield prefix + key, Case(value, (*base, *place), expected)
        account, budget = ("ServiceAccount", name), ("PodDisruptionBudget", name)
        yield f"{prefix}extraArgs", Case(["--x"], (*container, "args"), [command, "--x"])
        yield f"{prefix}serviceAccount.create", Case(False, account, ABSENT)
        notes = (*account, "metadata", "annotations")
        yield f"{prefix}serviceAccount.annotations", Case({"a": "b"}, notes, {"a": "b"})
        yield (
            f"{prefix}serviceAccount.automount",
            Case(name == "engine", (*pod, "automountServiceAccountToken"), name == "engine"),
        )
        yield f"{prefix}podDisruptionBudget.enabled", Case(False, budget, ABSENT)
        yield f"{prefix}podDisruptionBudget.minAvailable", Case("50%", (*budget, "spec", "minAvailable"), "50%")
        yield f"{prefix}podDisruptionBudget.maxUnavailable", Case(0, (*budget, "spec", "maxUnavailable"), 0)
        policy = (*budget, "spec", "unhealthyPodEvictionPolicy")
        yield (
            f"{prefix}podDisruptionBudget.unhealthyPodEvictionPolicy",
            Case("IfHealthyBudget", policy, "IfHealthyBudget"),
        )


_GPU = {"accelerator.type": "nvidia", "accelerator.count": 1}

CASES: dict[str, Case] = {
    **dict(_both()),
    "shm.enabled": Case(True, (*ENGINE_CONTAINER, "volumeMounts", "shm", "mountPath"), "/dev/shm"),
    "shm.size": Case("2Gi", (*ENGINE_POD, "volumes", "shm", "emptyDir", "sizeLimit"), "2Gi", {"shm.enabled": True}),
    "accelerator.type": Case(
        "nvidia", (*ENGINE_CONTAINER, "image"), "headstart/pod-gpu:0.1.0", {"accelerator.count": 1}
    ),
    "accelerator.count": Case(
        1, (*ENGINE_CONTAINER, "resources", "limits", "nvidia.com/gpu"), "1", {"accelerator.type": "nvidia"}
    ),
    "accelerator.resourceName": Case(
        "nvidia.com/mig-1g.5gb", (*ENGINE_CONTAINER, "resources", "limits", "nvidia.com/mig-1g.5gb"), "1", _GPU
    ),
    "accelerator.toleration": Case(False, (*ENGINE_POD, "tolerations"), ABSENT, _GPU),
    "accelerator.dra.deviceClassName": Case(
        "gpu.nvidia.com",
        ("ResourceClaimTemplate", "accelerator", "spec", "spec", "devices", "requests", "accelerator"),
        {"name": "accelerator", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}},
        _GPU,
    ),
    "accelerator.dra.resourceClaimTemplateName": Case(
        "mine", (*ENGINE_POD, "resourceClaims", "accelerator", "resourceClaimTemplateName"), "mine", _GPU
    ),
    "global.imageRegistry": Case("r.example/x", (*ENGINE_CONTAINER, "image"), "r.example/x/headstart/pod-cpu:0.1.0"),
    "global.imagePullSecrets": Case([{"name": "s"}], (*OPERATOR_POD, "imagePullSecrets"), [{"name": "s"}]),
    "commonLabels": Case({"team": "a"}, (*OPERATOR, "template", "metadata", "labels", "team"), "a"),
    "commonAnnotations": Case({"note": "a"}, ("Service", "", "metadata", "annotations", "note"), "a"),
    "nameOverride": Case("llm", ("Service", "rel-llm", "metadata", "labels", "app.kubernetes.io/name"), "llm"),
    "fullnameOverride": Case("llm", ("Deployment", "llm-engine"), "present"),
    "namespaceOverride": Case("other", (*ENGINE[:2], "metadata", "namespace"), "other"),
    "extraObjects": Case(
        [{"kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-more"}}],
        ("Secret", f"{FULLNAME[:3]}-more"),
        "present",
    ),
}
