"""What the cluster's binaries are built from. An edit here, or under `tools/`, builds all of them anew."""

from __future__ import annotations

from dataclasses import dataclass

_KUBERNETES = ("v1.34.4", "1", "34")
_KUBERNETES_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in zip(("gitVersion", "gitMajor", "gitMinor"), _KUBERNETES, strict=True)
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One binary: its name, the folder of its go.mod under `tools/`, its Go package, more flags for the linker."""

    name: str
    module: str
    package: str
    flags: str = ""


RECIPES = (
    # The API server first: it compiles nearly all that the others need.
    *(
        Recipe(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_FLAGS)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
    ),
    Recipe("coredns", "coredns", "."),
    Recipe("kube-router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
)
