"""What the machine must have for a cluster: rights, cgroups, programs. What is missing is said in one sentence each.

On Debian missing programs are installed, with no service started. Holds no state.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "socat": "socat",
    "debootstrap": "debootstrap",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "sysctl": "procps",
    "cc": "gcc",
}
_NETWORK_PLUGINS = (Path("/usr/lib/cni/bridge"), "containernetworking-plugins")
_NO_SERVICES = Path("/usr/sbin/policy-rc.d")


def check() -> None:
    """Raises RuntimeError that names everything that is missing and cannot be installed."""
    problems = _problems()
    if problems:
        raise RuntimeError("this machine cannot hold the test cluster: " + "; ".join(problems))
    missing = _missing_packages()
    if missing:
        _install(missing)


def _problems() -> list[str]:
    problems = []
    if os.geteuid() != 0:
        problems.append("it takes root, for namespaces, mounts and cgroups")
    elif subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode:
        problems.append("new network and mount namespaces are forbidden here (CAP_SYS_ADMIN)")
    if not Path("/sys/fs/cgroup/cpuset/cgroup.procs").exists():
        problems.append("the hierarchies of cgroup v1 are not mounted below /sys/fs/cgroup")
    if "overlay" not in Path("/proc/filesystems").read_text():
        problems.append("the kernel has no overlayfs")
    if _missing_packages() and not shutil.which("apt-get"):
        problems.append(f"programs of these Debian packages are missing: {', '.join(_missing_packages())}")
    return problems


def _missing_packages() -> list[str]:
    missing = [package for program, package in _PACKAGES.items() if not shutil.which(program)]
    plugin, package = _NETWORK_PLUGINS
    return missing if plugin.exists() else [*missing, package]


def _install(packages: list[str]) -> None:
    print(f"cluster: installing {' '.join(packages)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    has_policy = _NO_SERVICES.exists()
    if not has_policy:
        _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
        _NO_SERVICES.chmod(0o755)
    try:
        # Without the lists' own answer: a mirror that is out for a moment leaves the lists of before.
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=environment)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
        subprocess.run([*install, *packages], check=True, env=environment, stdout=subprocess.DEVNULL)
    finally:
        if not has_policy:
            _NO_SERVICES.unlink()
