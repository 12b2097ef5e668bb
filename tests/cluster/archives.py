"""Container images as archives that containerd imports: two small ones of the cluster, and the product's own.

An image of one static program is a tar file with two JSON files beside it: no builder is needed for that. The
product's are made by `make image`, and again only when something changed that the Dockerfile copies. Owner of its
state: the cache.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from pathlib import Path

from cluster import place

PRODUCT = ("pod-cpu", "operator")
_KEPT = 3
_SHOWN_LINES = 30
_COPIED = (
    "Dockerfile",
    ".dockerignore",
    "helm/image",
    "CMakeLists.txt",
    "LICENSE",
    "pyproject.toml",
    "requirements.lock",
    "kernels",
    "operator",
    "service",
)


def build() -> list[Path]:
    """What every node imports, made where it is missing; the pause image comes first."""
    return [_pause(), _coredns(), *_product()]


def _pause() -> Path:
    program = place.cache() / "pause"
    source = place.HERE / "tools" / "pause" / "pause.c"
    if not program.exists():
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-static", "-o", program, source], check=True)
    return _of_one_program(place.PAUSE, program)


def _coredns() -> Path:
    return _of_one_program(place.COREDNS, place.binary("coredns"))


def _of_one_program(image: str, program: Path) -> Path:
    archive = place.cache() / f"{program.name}.tar"
    if archive.exists():
        return archive
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(program, arcname=program.name, filter=_of_root)
    content = layer.getvalue()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as files:
        for name, part in (
            ("layer.tar", content),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(part)
            files.addfile(member, io.BytesIO(part))
    partial.rename(archive)
    return archive


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755
    return member


def _product() -> list[Path]:
    folder = place.cache().parent / "images" / _sources_hash()
    archives = [folder / f"{stage}.tar" for stage in PRODUCT]
    if not all(archive.exists() for archive in archives):
        print("cluster: making the images of pod and operator (some minutes)", flush=True)
        started, partial = time.monotonic(), folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        _make_product(partial)
        partial.rename(folder)
        print(f"cluster: images made in {time.monotonic() - started:.0f} s", flush=True)
    _forget_old(folder)
    return archives


def _make_product(folder: Path) -> None:
    """Raises RuntimeError with the end of what the builder said when it fails."""
    log = folder / "log"
    environment = os.environ | {"IMAGE_STAGES": " ".join(PRODUCT), "IMAGE_OUT": str(folder)}
    with log.open("w") as output:
        command = ["make", "--no-print-directory", "image"]
        done = subprocess.run(command, cwd=place.ROOT, env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        last = "\n".join(log.read_text().splitlines()[-_SHOWN_LINES:])
        raise RuntimeError(f"`make image` failed; {log} has all of it, and this is its end:\n{last}")


def _sources_hash() -> str:
    """Of what git would commit of the Dockerfile's inputs: build outputs beside them change nothing."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *_COPIED],
        cwd=place.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    digest = hashlib.sha256()
    for name in sorted(set(listed.stdout.splitlines())):
        path = place.ROOT / name
        if path.is_file():
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _forget_old(current: Path) -> None:
    """Archives are hundreds of megabytes: only the last few stay."""
    current.touch()
    folders = sorted(current.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT:]:
        for archive in folder.iterdir():
            archive.unlink()
        folder.rmdir()
