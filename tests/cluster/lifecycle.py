"""The cluster's beginning and end. Both are harmless when there is nothing to do; the end leaves nothing behind.

Owner of its state: the folder `place.STATE`, and what the kernel holds for it: namespaces, mounts, cgroups.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster import archives, binaries, control_plane, identities, network, nodes, place, programs, requirements
from support import helm

_DEVICE_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")


def build() -> list[Path]:
    """What `up` needs, made where it is missing: programs, binaries, images. Returns the images' archives."""
    requirements.check()
    for fetch in (helm.helm3, helm.helm4, helm.kubectl):
        fetch()
    binaries.build()
    return archives.build()


def up() -> None:
    """Two nodes and a working DNS. What is left of a cluster that is not whole is taken away first."""
    images = build()
    if _is_whole():
        print("cluster: it is up; make cluster-shell goes in")
        return
    down()
    started = time.monotonic()
    try:
        _start(images)
    except BaseException:
        down(keeps_logs=True)
        raise
    print(f"cluster: two nodes up in {time.monotonic() - started:.0f} s; make cluster-shell goes in", flush=True)


def down(*, keeps_logs: bool = False) -> None:
    """Ends each process by its recorded id, then takes away containers, mounts, cgroups, namespaces and files."""
    for node in place.NODES:
        nodes.stop_kubelet(node)
    for name in control_plane.NAMES:
        programs.stop(name)
    for node in place.NODES:
        nodes.stop_containers(node)
        nodes.stop_containerd(node)
    _unmount()
    network.remove()
    if place.STATE.exists():
        for path in place.STATE.iterdir():
            if path.name != "log":
                shutil.rmtree(path)
        if not keeps_logs:
            shutil.rmtree(place.STATE)
    _tidy()


def _start(images: list[Path]) -> None:
    place.STATE.mkdir(parents=True, exist_ok=True)
    network.make()
    identities.make()
    with ThreadPoolExecutor() as pool:
        loading = [pool.submit(nodes.start_containerd, node, images) for node in place.NODES]
        control_plane.start()
        for each in loading:
            each.result()
    for node in place.NODES:
        nodes.start_kubelet(node)
    for node in place.NODES:
        nodes.start_network(node)
    _apply(place.HERE / "manifests" / "coredns.yaml")
    _kubectl("rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=90s")


def _is_whole() -> bool:
    """Whether both nodes answer; a half of a cluster is none."""
    if not (Path("/run/netns") / place.NODES[0].netns).exists() or not place.admin_config().exists():
        return False
    ready = ("wait", "--for=condition=Ready", *(f"node/{node.name}" for node in place.NODES), "--timeout=5s")
    return programs.succeeds(place.in_node(place.NODES[0], *control_plane.kubectl(*ready)))


def _apply(manifest: Path) -> None:
    _kubectl("apply", "--filename", str(manifest))


def _kubectl(*arguments: str) -> None:
    command = place.in_node(place.NODES[0], *control_plane.kubectl(*arguments))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _tidy() -> None:
    """What kubelet and containerd leave at places that no option moves, unless this machine's own are using it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        if client.connect_ex(str(_DEVICE_SOCKET)) == errno.ECONNREFUSED:
            _DEVICE_SOCKET.unlink()
    for folder in (_DEVICE_SOCKET.parent, *map(Path, ("/run/containerd/runc/k8s.io", "/run/containerd/s"))):
        for empty in (folder, *folder.parents):
            try:
                empty.rmdir()
            except OSError:
                break


def _unmount() -> None:
    """The innermost first. A mount's point is the second word of its line, with blanks as \\040."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((each for each in mounts if each.startswith(f"{place.STATE}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
