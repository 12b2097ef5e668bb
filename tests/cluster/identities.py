"""Certificates and kubeconfigs of the cluster's parts, from an authority of its own.

Keys are of elliptic curves: making ten of them takes no time. Owner of its state: the files under `pki/`.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence

from cluster import place

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_API_NAMES = (
    *(f"DNS:kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
    "DNS:localhost",
    "IP:127.0.0.1",
    f"IP:{place.FIRST_SERVICE}",
    f"IP:{place.API_ADDRESS}",
)


def make() -> None:
    place.pki("").mkdir(parents=True, exist_ok=True)
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-days", "30", "-subj", "/CN=test-ca")
    _openssl("req", "-x509", *_CURVE, *authority)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
    _openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    _sign("apiserver", "kube-apiserver", "kubernetes", _API_NAMES)
    for name, user, group in (
        ("admin", "admin", "system:masters"),
        ("controllers", "system:kube-controller-manager", "system:kube-controller-manager"),
        ("scheduler", "system:kube-scheduler", "system:kube-scheduler"),
        ("proxy", "system:kube-proxy", "system:node-proxier"),
    ):
        _sign(name, user, group, (f"DNS:{name}",))
        _configure(name)
    for node in place.NODES:
        names = (f"DNS:{node.name}", f"IP:{node.address}", "IP:127.0.0.1")
        _sign(node.name, f"system:node:{node.name}", "system:nodes", names)
        _configure(node.name)


def _sign(name: str, user: str, group: str, names: Sequence[str]) -> None:
    extensions = place.pki(f"{name}.ext")
    extensions.write_text(f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl("req", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O={group}/CN={user}")
    signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
    _openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.crt", "-extfile", f"{name}.ext")


def _configure(name: str) -> None:
    """A kubeconfig, as the JSON that YAML also is."""

    def embedded(file: str) -> str:
        return base64.b64encode(place.pki(file).read_bytes()).decode()

    user = {"client-certificate-data": embedded(f"{name}.crt"), "client-key-data": embedded(f"{name}.key")}
    server = {"server": f"https://{place.API_ADDRESS}:6443", "certificate-authority-data": embedded("ca.crt")}
    place.pki(f"{name}.conf").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": server}],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                "current-context": "test",
            }
        )
    )


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=place.pki(""), check=True, capture_output=True)
