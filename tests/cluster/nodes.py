"""A node: its containerd with the images, its kubelet, its kube-proxy, and what enforces NetworkPolicy.

Two kubelets share the machine, so each has a cgroup, a containerd and a pod network of its own. Owner of its state: the
node's folder and its cgroup.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster import control_plane, place, programs

_CGROUPS = Path("/sys/fs/cgroup")
_LOG_LINKS = Path("/var/log/containers")
_NETWORK_RESULTS = Path("/var/lib/cni/results")


def start_containerd(node: place.Node, archives: Sequence[Path]) -> None:
    """Returns when the images are imported."""
    node.folder.mkdir(parents=True)
    settings = node.folder / "containerd.toml"
    settings.write_text(_containerd_settings(node))
    _write_network(node)
    programs.start(f"containerd-{node.name}", place.in_node(node, "containerd", "-c", settings))
    programs.until(f"containerd of {node.name}", lambda: programs.succeeds(_ctr(node, "version")), patience_s=30)
    for archive in archives:
        done = subprocess.run([*_ctr(node, "image", "import"), archive], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{node.name} does not take {archive}: {done.stderr or done.stdout}")


def start_kubelet(node: place.Node) -> None:
    _make_cgroups(node)
    settings = node.folder / "kubelet.json"
    settings.write_text(json.dumps(_kubelet_settings(node)))
    flags = (
        f"--config={settings}",
        f"--kubeconfig={place.pki(f'{node.name}.conf')}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.folder / 'kubelet'}",
        f"--cert-dir={node.folder}",
    )
    programs.start(f"kubelet-{node.name}", place.in_node(node, place.binary("kubelet"), *flags))


def start_network(node: place.Node) -> None:
    """Services and policies. Once the node is registered: kube-router looks for it when it starts, and ends without."""
    settings = node.folder / "proxy.json"
    settings.write_text(json.dumps(_proxy_settings(node)))
    programs.start(f"proxy-{node.name}", place.in_node(node, place.binary("kube-proxy"), f"--config={settings}"))
    is_ready = control_plane.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=1s")
    waiting = place.in_node(node, *is_ready)
    programs.until(f"ready {node.name}", lambda: programs.succeeds(waiting), patience_s=90)
    flags = (
        "--run-firewall=true",
        "--run-service-proxy=false",
        "--run-router=false",
        f"--kubeconfig={place.admin_config()}",
        f"--hostname-override={node.name}",
        f"--service-cluster-ip-range={place.SERVICES}",
        "--health-port=0",
    )
    programs.start(f"policies-{node.name}", place.in_node(node, place.binary("kube-router"), *flags))


def stop_kubelet(node: place.Node) -> None:
    """All but containerd, which is needed to end the containers."""
    for name in (f"policies-{node.name}", f"kubelet-{node.name}", f"proxy-{node.name}"):
        programs.stop(name)


def stop_containers(node: place.Node) -> None:
    """At once and without asking, as when a node loses its power."""
    for task in _listed(node, "task"):
        subprocess.run([*_ctr(node, "task", "delete", "-f"), task], capture_output=True, check=False)
    for container in _listed(node, "container"):
        subprocess.run([*_ctr(node, "container", "delete"), container], capture_output=True, check=False)


def stop_containerd(node: place.Node) -> None:
    programs.stop(f"containerd-{node.name}")
    programs.end_those(lambda pid: _is_of(node, pid))
    _remove_traces(node)
    for root in _CGROUPS.glob(f"*/{node.netns}"):
        for folder in sorted(root.rglob("*/"), reverse=True):
            _remove_empty(folder)
        _remove_empty(root)


def _remove_traces(node: place.Node) -> None:
    """What kubelet and containerd write outside of their folders, whatever they are told."""
    for link in _LOG_LINKS.glob("*"):
        if link.is_symlink() and str(node.folder) in os.readlink(link):
            link.unlink()
    for result in _NETWORK_RESULTS.glob("*"):
        if f"{node.folder}/" in result.read_text():
            result.unlink()
    for folder in (_LOG_LINKS, _NETWORK_RESULTS, _NETWORK_RESULTS.parent):
        _remove_empty(folder)


def _ctr(node: place.Node, *arguments: str) -> list[str]:
    return ["ctr", "--address", str(node.socket), "--namespace", "k8s.io", *arguments]


def _listed(node: place.Node, kind: str) -> list[str]:
    """Of what its containerd has; nothing where none runs, for which `ctr` would wait long."""
    if not node.socket.exists():
        return []
    found = subprocess.run([*_ctr(node, kind, "ls", "-q")], capture_output=True, text=True, check=False)
    return found.stdout.split()


def _is_of(node: place.Node, pid: int) -> bool:
    """A shim of the node's containerd, or anything in its cgroup."""
    process = Path("/proc") / str(pid)
    try:
        if f":/{node.netns}/" in (process / "cgroup").read_text():
            return True
        command = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return command[0].endswith(b"containerd-shim-runc-v2") and str(node.socket).encode() in command


def _hierarchies() -> list[Path]:
    """Those of cgroup v1, one for each controller."""
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists() and path.name != "unified"]


def _make_cgroups(node: place.Node) -> None:
    """Below one of its own: two kubelets on one /kubepods would end each other's pods as orphans."""
    for hierarchy in _hierarchies():
        (hierarchy / node.netns).mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        (_CGROUPS / "cpuset" / node.netns / name).write_text((_CGROUPS / "cpuset" / name).read_text())


def _remove_empty(folder: Path) -> None:
    """A folder, or a cgroup without processes."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_network(node: place.Node) -> None:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.folder / "addresses"),
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    (node.folder / "cni").mkdir()
    (node.folder / "cni" / "pods.conflist").write_text(
        json.dumps({"cniVersion": "0.4.0", "name": f"pods-{node.name}", "plugins": plugins})
    )


def _containerd_settings(node: place.Node) -> str:
    # restrict_oom_score_adj: who lacks CAP_SYS_RESOURCE cannot lower oom_score_adj: runc would die in its first child.
    return f"""
version = 2
root = "{node.folder}/containerd/root"
state = "{node.folder}/containerd/state"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{place.PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{node.folder}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder}/cni"
"""


def _kubelet_settings(node: place.Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(place.pki("ca.crt"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(place.pki(f"{node.name}.crt")),
        "tlsPrivateKeyFile": str(place.pki(f"{node.name}.key")),
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.netns}",
        "failSwapOn": False,
        "clusterDNS": [place.DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "/dev/null",
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
        # Two kubelets with one folder of logs would take each other's for orphans.
        "podLogsDir": str(node.folder / "logs"),
        "volumePluginDir": str(node.folder / "volume-plugins"),
    }


def _proxy_settings(node: place.Node) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(place.pki("proxy.conf"))},
        "mode": "iptables",
        "clusterCIDR": place.PODS,
        "hostnameOverride": node.name,
        "conntrack": {"maxPerCore": 0},
    }
