"""How the router reaches a pod: the connection's options, TLS, and the router's own key. Knows nothing of requests.

What is read from files is read for each new connection, so a pod that comes later gets what is valid then. A
connection keeps what it was opened with. Owner of
its state: the fleet that connects.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import cast

import grpc
import grpc.aio
from headstart.edge.keyed_channel import KeyedChannel
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
    """The settings `operator.pod_key` and `operator.pod_tls`, as plain values. A `ca_file` turns TLS on."""

    key: str = field(default="", repr=False)
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

    def connect(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            channel = insecure_channel(address)
        else:
            self._renew()
            name = self._access.server_name
            named = (("grpc.ssl_target_name_override", name),) if name else ()
            channel = grpc.aio.secure_channel(address, self._credentials, options=(*_OPTIONS, *named))
        # A keyed channel has what stubs and the fleet use of a channel, and no more.
        return cast(grpc.aio.Channel, KeyedChannel(channel, self._access.key)) if self._access.key else channel

    def _renew(self) -> None:
        try:
            self._credentials = _credentials(self._access)
        except ConfigError as error:
            _LOGGER.error("pods are reached with the certificates of before: %s", error)


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
