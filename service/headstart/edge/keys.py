"""API keys as files: a folder with one file per tenant, each line a key; two are valid while one is replaced.

A mounted Secret has this form. Keys are held as SHA-256 digests and found by them: how long a lookup takes depends on
the digest of what was sent, which tells nothing about a key that is close to it, so no comparison needs constant time.
No error and no log line holds a key. Knows nothing of calls. Owner of its state: whoever calls `refresh`; readers see
one whole state or the next.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from headstart.errors import ConfigError

SETTING = "server.auth.keys_dir"
MIN_KEY_CHARS = 16
_MAX_FILE_BYTES = 1 << 20
# What Kubernetes' mounts are switched with: files of one state appear together.
_SWITCH = "..data"

_LOGGER = logging.getLogger(__name__)


class KeyRing:
    """The keys of a folder. Raises ConfigError when it has none, or one that cannot be one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp = _stamp(folder)
        self._tenants = read_keys(folder)

    @property
    def num_tenants(self) -> int:
        return len(set(self._tenants.values()))

    def tenant_of(self, key: str) -> str | None:
        """Whose key this is; None when it is nobody's."""
        return self._tenants.get(_digest(key))

    def refresh(self) -> None:
        """Take the folder's new state when it has changed. One that cannot work is logged, and the last one stays."""
        stamp = _stamp(self._folder)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tenants = read_keys(self._folder)
        except ConfigError as error:
            _LOGGER.error("the API keys stay as they were: %s", error)
        else:
            _LOGGER.info("API keys of %d tenants were read anew", self.num_tenants)


def first_key(text: str) -> str:
    """The key that a client uses of such a file's text, "" when it holds none: what comes after is on its way out."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def read_keys(folder: Path) -> Mapping[bytes, str]:
    """Digest -> tenant. Raises ConfigError that names the file and what is wrong with it."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{SETTING}: {folder} cannot be read: {error.strerror}") from None
    tenants: dict[bytes, str] = {}
    for path in paths:
        for key in _keys_in(path):
            owner = tenants.setdefault(_digest(key), path.name)
            if owner != path.name:
                raise ConfigError(f"{SETTING}: {folder / owner} and {path} hold the same key; a key names one tenant")
    if not tenants:
        raise ConfigError(f"{SETTING}: {folder} holds no keys; put in one file per tenant")
    return tenants


def _keys_in(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{SETTING}: {path} cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{SETTING}: {path} is no file of keys: it has more than {_MAX_FILE_BYTES} bytes")
    # Bytes that are no ASCII become characters that no key has.
    keys = [line.strip() for line in raw.decode("ascii", "replace").splitlines() if line.strip()]
    if not keys:
        raise ConfigError(f"{SETTING}: {path} holds no key")
    for number, key in enumerate(keys, 1):
        if not all("!" <= char <= "~" for char in key):
            raise ConfigError(f"{SETTING}: {path}, key {number}: only visible ASCII characters make a key")
        if len(key) < MIN_KEY_CHARS:
            raise ConfigError(f"{SETTING}: {path}, key {number}: shorter than {MIN_KEY_CHARS} characters")
    return keys


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _stamp(folder: Path) -> object:
    """Differs whenever the files do. Cheap for a mounted Secret, whose files change together."""
    try:
        switch = folder / _SWITCH
        if switch.is_symlink():
            return switch.readlink(), _signature(folder)
        return [(path.name, _signature(path)) for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    except OSError as error:
        return error.errno


def _signature(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
