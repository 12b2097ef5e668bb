"""Where everything of the test cluster lies: its state, its binaries, and the addresses it uses.

Pure: paths and names only. The state is whatever `lifecycle.up` made and `lifecycle.down` takes away.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
STATE = Path("/var/lib/headstart-cluster")

SWITCH = "headstart-switch"
API_ADDRESS = "10.250.0.10"
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
PODS = "10.244.0.0/16"
PAUSE = "test.local/pause:1"
COREDNS = "test.local/coredns:1"


@dataclass(frozen=True, slots=True)
class Node:
    """One node: a network namespace with a containerd, a kubelet and a kube-proxy of its own."""

    index: int

    @property
    def name(self) -> str:
        return f"node-{'ab'[self.index]}"

    @property
    def netns(self) -> str:
        """Of the network namespace, and of the node's own folder in each cgroup hierarchy."""
        return f"headstart-{self.name}"

    @property
    def address(self) -> str:
        return f"10.250.0.1{self.index}"

    @property
    def port(self) -> str:
        """The node's end in the switch: taken down, the node is lost."""
        return f"port-{self.name}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def socket(self) -> Path:
        """Of its containerd."""
        return self.folder / "containerd.sock"


NODES = (Node(0), Node(1))


def pki(name: str) -> Path:
    return STATE / "pki" / name


def admin_config() -> Path:
    return pki("admin.conf")


def cache() -> Path:
    """Where what takes long to make is kept: one folder for each state of the recipes under `tools/`."""
    given = os.environ.get("HEADSTART_CLUSTER_CACHE")
    folder = Path(given) if given else _user_cache() / "headstart" / "cluster"
    return folder / recipe_hash()


def recipe_hash() -> str:
    """Of every file that decides what the binaries and the images beside them are."""
    digest = hashlib.sha256()
    for path in [*sorted((HERE / "tools").rglob("*")), HERE / "recipes.py"]:
        if path.is_file():
            digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def binary(name: str) -> Path:
    return cache() / "bin" / name


def in_node(node: Node, *command: str | Path) -> list[str]:
    """`command` in the node's network. Not `ip netns exec`, which hides the cgroups behind a new /sys."""
    return ["nsenter", f"--net=/run/netns/{node.netns}", *map(str, command)]
