"""Reads an image archive, in OCI's layout or in docker's: its configuration, the size of its layers, its files."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

_WHITEOUT = ".wh."


@dataclass(frozen=True)
class Image:
    """`config` is the image's, as in OCI's specification; `layers` are names in the archive, the lowest first."""

    archive: Path
    config: dict[str, Any]
    layers: tuple[str, ...]

    def compressed_bytes(self) -> int:
        """What a node pulls: the layers as gzip, compressed here where the archive holds them plain."""
        with tarfile.open(self.archive) as outer:
            return sum(_compressed_size(outer, name) for name in self.layers)

    def unpack(self, root: Path) -> None:
        """Write the image's files below `root`, owners and modes included; needs to be root."""
        with tarfile.open(self.archive) as outer:
            for name in self.layers:
                with _plain(_member(outer, name)) as content, tarfile.open(fileobj=content, mode="r|") as layer:
                    for member in _visible(layer, root):
                        layer.extract(member, root, numeric_owner=True, filter="fully_trusted")


def read_image(archive: Path) -> Image:
    with tarfile.open(archive) as outer:
        if "index.json" not in outer.getnames():
            (entry,) = _json(outer, "manifest.json")
            return Image(archive, _json(outer, entry["Config"]), tuple(entry["Layers"]))
        (listed,) = _json(outer, "index.json")["manifests"]
        manifest = _json(outer, _blob(listed["digest"]))
        layers = tuple(_blob(layer["digest"]) for layer in manifest["layers"])
        return Image(archive, _json(outer, _blob(manifest["config"]["digest"])), layers)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(outer: tarfile.TarFile, name: str) -> Any:
    return json.loads(_member(outer, name).read())


def _member(outer: tarfile.TarFile, name: str) -> IO[bytes]:
    content = outer.extractfile(name)
    assert content is not None, name
    return content


def _plain(content: IO[bytes]) -> IO[bytes]:
    is_gzip = content.read(2) == b"\x1f\x8b"
    content.seek(0)
    return gzip.open(content) if is_gzip else content  # type: ignore[return-value]


def _compressed_size(outer: tarfile.TarFile, name: str) -> int:
    content = _member(outer, name)
    if content.read(2) == b"\x1f\x8b":
        return outer.getmember(name).size
    content.seek(0)
    return len(gzip.compress(content.read(), compresslevel=6))


def _visible(layer: tarfile.TarFile, root: Path) -> Iterator[tarfile.TarInfo]:
    """The layer's members but those that only say what a lower layer's file no longer is; those are removed."""
    for member in layer:
        path = PurePosixPath(member.name)
        if path.name.startswith(_WHITEOUT):
            removed = root / path.parent / path.name.removeprefix(_WHITEOUT)
            assert not removed.is_dir(), f"a layer removes the folder {removed}: the images should not need that"
            removed.unlink(missing_ok=True)
            continue
        target = root / member.name
        if target.is_symlink() or target.is_file():
            target.unlink()
        yield member
