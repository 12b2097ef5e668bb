"""TLS from PEM files, for servers and for clients. A server's files may be replaced while it runs.

Each file is named by the setting or flag that gave it. What cannot work is told at the start; later a bad new state is
logged and the last good one stays in use. Knows nothing of ports. Owner of a server's state: whoever calls `refresh`;
handshakes read the newest state.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from headstart.errors import ConfigError

_LOGGER = logging.getLogger(__name__)


class NamedFile(NamedTuple):
    """A file, and what a person calls the choice of it. An empty path is none."""

    name: str
    path: str


class _Material(NamedTuple):
    """What one state of a server's files gives."""

    configuration: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext


class ServerTls:
    """A server's certificate; with a `client_ca` clients need one too. Raises ConfigError that names the file."""

    def __init__(self, cert: NamedFile, key: NamedFile, client_ca: NamedFile) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._stamp = self._read_stamp()
        self._material = self._load()
        self._handed = self._material.configuration
        self._front = self._open_front()

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Asked for the newest state at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._handed,
            self._newest,  # type: ignore[arg-type]  # the stubs do not know that None means "as last time"
            require_client_authentication=bool(self._client_ca.path),
        )

    def http_context(self) -> ssl.SSLContext:
        """Hands each handshake to the newest state."""
        return self._front

    def refresh(self) -> None:
        """Take the files' new state when they have changed, if it can work."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        try:
            material = self._load()
        except ConfigError as error:
            _LOGGER.error("TLS goes on with the certificate that it has: %s", error)
        else:
            if self._read_stamp() != stamp:
                return  # they are still being written: next time
            self._material = material
            _LOGGER.info("the TLS files were read anew")
        self._stamp = stamp

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        """Runs on gRPC's threads. None: as last time, which saves gRPC the parsing."""
        newest = self._material.configuration
        if newest is self._handed:
            return None
        self._handed = newest
        return newest

    def _open_front(self) -> ssl.SSLContext:
        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG001
            connection.context = self._material.context

        front = self._context()
        front.sni_callback = choose
        return front

    def _load(self) -> _Material:
        pair = (_read(self._key), _read(self._cert))
        roots = _read(self._client_ca) if self._client_ca.path else None
        return _Material(grpc.ssl_server_certificate_configuration([pair], roots), self._context())

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # A session taken up again would pass by a client CA that has been replaced since.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        check_pair(self._cert, self._key, context)
        if self._client_ca.path:
            check_roots(self._client_ca, context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _read_stamp(self) -> list[tuple[int, int, int] | int | None]:
        return [_signature(file.path) for file in (self._cert, self._key, self._client_ca) if file.path]


def open_server_tls(cert: NamedFile, key: NamedFile, client_ca: NamedFile) -> ServerTls | None:
    """None when no file is named. Raises ConfigError for a part without the others."""
    if not (cert.path or key.path or client_ca.path):
        return None
    _check_whole(cert, key, needs_pair=bool(client_ca.path))
    return ServerTls(cert, key, client_ca)


def client_credentials(ca: NamedFile, cert: NamedFile, key: NamedFile) -> grpc.ChannelCredentials:
    """Trusts `ca`, or gRPC's list of public ones without it; shows `cert` if there is one. Raises ConfigError."""
    _check_whole(cert, key, needs_pair=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca.path:
        check_roots(ca, context)
    if cert.path:
        check_pair(cert, key, context)
    return grpc.ssl_channel_credentials(*(_read(file) if file.path else None for file in (ca, key, cert)))


def check_pair(cert: NamedFile, key: NamedFile, context: ssl.SSLContext) -> None:
    """Load a certificate and its key. Raises ConfigError that names the one at fault, as far as that can be told."""
    for file in (cert, key):
        _read(file)
    try:
        # A pass phrase is never asked for at a terminal that nobody watches.
        context.load_cert_chain(cert.path, key.path, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key.name}: {key.path} is not the key of the certificate in {cert.name}") from None
        at_fault = key if _is_chain(cert) else cert
        what = "a private key without a pass phrase" if at_fault is key else "a certificate"
        reason = getattr(error, "reason", None) or "unreadable"
        raise ConfigError(f"{at_fault.name}: {at_fault.path} is not {what} that can be used ({reason})") from None


def check_roots(ca: NamedFile, context: ssl.SSLContext) -> None:
    """Load certificates that others are to come from. Raises ConfigError."""
    _read(ca)
    try:
        context.load_verify_locations(cafile=ca.path)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"{ca.name}: {ca.path} holds no certificates in PEM") from None


def _is_chain(cert: NamedFile) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=cert.path)
    except (ssl.SSLError, OSError):
        return False
    return True


def _check_whole(cert: NamedFile, key: NamedFile, *, needs_pair: bool) -> None:
    if not cert.path and (key.path or needs_pair):
        raise ConfigError(f"{cert.name}: set it too; without a certificate there is no TLS")
    if not key.path and cert.path:
        raise ConfigError(f"{key.name}: set it too; {cert.name} needs its private key")


def _read(file: NamedFile) -> bytes:
    try:
        return Path(file.path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file.name}: {file.path} cannot be read: {error.strerror}") from None


def _signature(path: str) -> tuple[int, int, int] | int | None:
    try:
        status = Path(path).stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino
