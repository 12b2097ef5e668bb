"""etcd, the API server, the controllers and the scheduler, in the first node's network. Holds no state of its own."""

from __future__ import annotations

from cluster import place, programs
from support import helm

# Last first: what another needs ends after it.
NAMES = ("scheduler", "controllers", "apiserver", "etcd")
_NODE = place.NODES[0]
_ETCD = "http://127.0.0.1:2379"


def start() -> None:
    """Returns when the API answers. Raises TimeoutError."""
    _start_etcd()
    start_api_server()
    programs.start("controllers", _controllers())
    scheduler = (f"--kubeconfig={place.pki('scheduler.conf')}", "--leader-elect=false", "--bind-address=127.0.0.1")
    programs.start("scheduler", place.in_node(_NODE, place.binary("kube-scheduler"), *scheduler))


def kubectl(*arguments: str) -> list[str]:
    """For a process in a node's network."""
    return [str(helm.kubectl()), f"--kubeconfig={place.admin_config()}", *arguments]


def _start_etcd() -> None:
    peers = "http://127.0.0.1:2380"
    listens = (f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}", f"--listen-peer-urls={peers}")
    # What it loses when the machine dies is a test's cluster, and that dies as well.
    files = (f"--data-dir={place.STATE / 'etcd'}", "--unsafe-no-fsync")
    programs.start("etcd", place.in_node(_NODE, "etcd", "--name=test", *listens, *files))


def start_api_server() -> None:
    """Returns when it answers. Raises TimeoutError."""
    flags = (
        f"--etcd-servers={_ETCD}",
        f"--advertise-address={place.API_ADDRESS}",
        "--secure-port=6443",
        f"--tls-cert-file={place.pki('apiserver.crt')}",
        f"--tls-private-key-file={place.pki('apiserver.key')}",
        f"--client-ca-file={place.pki('ca.crt')}",
        f"--kubelet-client-certificate={place.pki('admin.crt')}",
        f"--kubelet-client-key={place.pki('admin.key')}",
        f"--kubelet-certificate-authority={place.pki('ca.crt')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={place.pki('sa.pub')}",
        f"--service-account-signing-key-file={place.pki('sa.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={place.SERVICES}",
        # A lost node's pods are given up after seconds; a real cluster waits five minutes.
        "--default-not-ready-toleration-seconds=10",
        "--default-unreachable-toleration-seconds=10",
    )
    programs.start("apiserver", place.in_node(_NODE, place.binary("kube-apiserver"), *flags))
    is_ready = place.in_node(_NODE, *kubectl("get", "--raw", "/readyz"))
    programs.until("answer of the API server", lambda: programs.succeeds(is_ready), patience_s=90)


def _controllers() -> list[str]:
    flags = (
        f"--kubeconfig={place.pki('controllers.conf')}",
        f"--service-account-private-key-file={place.pki('sa.key')}",
        f"--root-ca-file={place.pki('ca.crt')}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--node-monitor-grace-period=20s",
        f"--flex-volume-plugin-dir={place.STATE / 'volume-plugins'}",
    )
    return place.in_node(_NODE, place.binary("kube-controller-manager"), *flags)
