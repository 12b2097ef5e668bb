"""What a process is called, and how a name goes into gRPC's metadata, which holds nothing but visible ASCII.

Holds no state.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.parse import quote

from headstart.errors import ConfigError

_MAX_NAME_CHARS = 253
"""Kubernetes' own limit; of trailers a client takes a few KiB."""

_VISIBLE = frozenset(map(chr, range(ord("!"), ord("~") + 1)))


def pod_name(environ: Mapping[str, str], *, port: int = 0) -> str:
    """POD_NAME, else the host's name, with a port that tells its pods apart unless it is 0.

    Raises ConfigError for one that no call's trailers could hold.
    """
    host = socket.gethostname()
    return _checked("POD_NAME", environ.get("POD_NAME") or (f"{host}:{port}" if port else host))


def pod_uid(environ: Mapping[str, str]) -> str:
    """POD_UID, or "". Raises ConfigError as `pod_name`."""
    return _checked("POD_UID", environ.get("POD_UID", ""))


def is_visible_ascii(text: str) -> bool:
    """Whether it goes into metadata as it is."""
    return set(text) <= _VISIBLE


def in_metadata(name: str) -> str:
    """A name that somebody else chose, as a value of gRPC's metadata: what does not go there is percent-encoded."""
    return quote(name, safe="".join(_VISIBLE))


def _checked(variable: str, name: str) -> str:
    if len(name) > _MAX_NAME_CHARS or not is_visible_ascii(name):
        shown = ascii(name[:40])
        raise ConfigError(
            f"{variable}: not {shown}: at most {_MAX_NAME_CHARS} visible ASCII characters, without spaces"
        )
    return name
