"""Certificates for tests, made on the spot by the `openssl` program: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_ADDRESS = "IP:127.0.0.1"


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; `ca` is its own. Its files lie in `folder` under its name."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        constraints = ["-addext", "basicConstraints=critical,CA:TRUE"]
        _openssl("req", "-x509", *_NEW_KEY, *_files(self._key, self.ca), "-subj", f"/CN={name}", *constraints)

    def issue(self, name: str, *, alt_name: str = _ADDRESS) -> Pair:
        """A certificate for 127.0.0.1 or another name, and its key."""
        stem = self._folder / f"{self._name}-{name}"
        pair = Pair(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={alt_name}\n")
        _openssl("req", *_NEW_KEY, *_files(pair.key, request), "-subj", f"/CN={name}")
        signer = ["-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", extensions]
        _openssl("x509", "-req", "-in", request, "-out", pair.cert, *signer)
        return pair


def lock_key(key: Path, locked: Path) -> None:
    """The same private key behind a pass phrase."""
    _openssl("pkcs8", "-topk8", "-in", key, "-out", locked, "-passout", "pass:secret")


def _files(key: Path, out: Path) -> list[str | Path]:
    return ["-keyout", key, "-out", out]


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)
