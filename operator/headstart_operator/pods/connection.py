"""How the router reaches a pod: the connection's options, TLS, and the router's own key. Knows nothing of requests.

Certificates are read for each new connection, so a pod that comes later gets what is valid then; a connection keeps
what it was opened with. The key is looked at for each call, so a pod that refuses the old one is next asked with the
new one. Owner of its state: the fleet that
connects.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
from headstart.edge.keyed_channel import KeyedChannel
from headstart.edge.keys import first_key
from headstart.edge.names import is_visible_ascii
from headstart.edge.tls import NamedFile, client_credentials
from headstart.errors import ConfigError

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 32 * 1024 * 1024),
    # Pods of equal address must not share a connection: one of them may be gone.
    ("grpc.use_local_subchannel_pool", 1),
)

REFUSALS = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""What a pod says to a router that has not the key of one of its admin tenants: no concern of the router's clients."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAccess:
    """The settings `operator.pod_key` and `operator.pod_tls`, as plain values. A `ca_file` turns TLS on.

    `key` is what `key_source` held, the file that the key is read from again when that changes; "" for none.
    """

    key: str = field(default="", repr=False)
    key_source: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


def insecure_channel(address: str) -> grpc.aio.Channel:
    """A plain connection that is tried again soon after its pod comes back."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


class PodConnector:
    """Opens connections to pods. Raises ConfigError, naming the setting, for a key or files that cannot work."""

    def __init__(self, access: PodAccess) -> None:
        if not is_visible_ascii(access.key):
            raise ConfigError("operator.pod_key: a key is one word of visible ASCII characters")
        self._access = access
        self._credentials = _credentials(access)
        self._key = _Key(access)

    def connect(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            channel = insecure_channel(address)
        else:
            self._renew()
            name = self._access.server_name
            named = (("grpc.ssl_target_name_override", name),) if name else ()
            channel = grpc.aio.secure_channel(address, self._credentials, options=(*_OPTIONS, *named))
        # A keyed channel has what stubs and the fleet use of a channel, and no more.
        return cast(grpc.aio.Channel, KeyedChannel(channel, self._key)) if self._access.key else channel

    def _renew(self) -> None:
        try:
            self._credentials = _credentials(self._access)
        except ConfigError as error:
            _LOGGER.error("pods are reached with the certificates of before: %s", error)


class _Key:
    """The router's key as its file has it now. A file that holds none that could work leaves it as it was."""

    def __init__(self, access: PodAccess) -> None:
        self._path = Path(access.key_source)
        self._key = access.key
        self._is_from_file = bool(access.key_source)
        self._stamp: object = None

    def __call__(self) -> str:
        if self._is_from_file and (stamp := self._signature()) != self._stamp:
            self._stamp = stamp
            self._read()
        return self._key

    def _read(self) -> None:
        try:
            key = first_key(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            key = ""
        if not key or not is_visible_ascii(key):
            _LOGGER.error("operator.pod_key: %s holds no key now, so the one of before is used", self._path)
        elif key != self._key:
            self._key = key
            _LOGGER.info("operator.pod_key: read anew from %s", self._path)

    def _signature(self) -> object:
        try:
            status = self._path.stat()
        except OSError as error:
            return error.errno
        return status.st_mtime_ns, status.st_size, status.st_ino


def _credentials(access: PodAccess) -> grpc.ChannelCredentials | None:
    """None for plain connections."""
    ca = NamedFile("operator.pod_tls.ca_file", access.ca_file)
    cert = NamedFile("operator.pod_tls.cert_file", access.cert_file)
    key = NamedFile("operator.pod_tls.key_file", access.key_file)
    if ca.path:
        return client_credentials(ca, cert, key)
    if cert.path or key.path or access.server_name:
        raise ConfigError(f"{ca.name}: set it too; without it pods are reached in plain text")
    return None
