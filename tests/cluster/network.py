"""The cluster's network: a namespace for each node, on a switch that has no way out.

No packet of a pod or a Service can leave the machine, not even by a lost route. Owner of its state: the kernel.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster import place

_GATEWAY = "10.250.0.1"


def make() -> None:
    _run("ip netns add", place.SWITCH)
    for line in (
        "link set lo up",
        "link add br0 type bridge",
        f"addr add {_GATEWAY}/24 dev br0",
        "link set br0 up",
    ):
        _run(f"ip -n {place.SWITCH}", line)
    for node in place.NODES:
        _join(node)


def _join(node: place.Node) -> None:
    _run("ip netns add", node.netns)
    _run(f"ip -n {node.netns} link set lo up")
    # veth: this is the one kind of link that every kernel with namespaces has.
    _run(f"ip link add eth0 netns {node.netns} type veth peer name {node.port} netns {place.SWITCH}")
    _run(f"ip -n {place.SWITCH} link set {node.port} master br0 up")
    _run(f"ip -n {node.netns} addr add {node.address}/24 dev eth0")
    _run(f"ip -n {node.netns} link set eth0 up")
    _run(f"ip -n {node.netns} route add default via {_GATEWAY}")
    for other in place.NODES:
        if other != node:
            _run(f"ip -n {node.netns} route add {other.pods} via {other.address}")
    subprocess.run(place.in_node(node, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)
    # Not there without the bridge's netfilter module; then packets between pods of a node pass no rules, and need none.
    bridged = ("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1")
    subprocess.run(place.in_node(node, *bridged), check=False, capture_output=True)


def remove() -> None:
    """Harmless when there is none."""
    for name in (*(node.netns for node in place.NODES), place.SWITCH):
        if (Path("/run/netns") / name).exists():
            _run("ip netns del", name)


def set_link(node: place.Node, *, up: bool) -> None:
    """Down, the node is alive and nobody can reach it."""
    _run(f"ip -n {place.SWITCH} link set {node.port}", "up" if up else "down")


def _run(*words: str) -> None:
    subprocess.run(" ".join(words).split(), check=True)
