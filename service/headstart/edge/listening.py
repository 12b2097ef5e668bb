"""What every gRPC server of ours does alike: its limits, how it takes a port, how signals end it. Holds no state."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import grpc.aio

from headstart.edge.tls import ServerTls
from headstart.errors import ConfigError

MAX_RECEIVE_BYTES = 32 * 1024 * 1024
MAX_PROBE_BYTES = 64 * 1024
"""On a port for probes alone, which is open to everybody."""

MAX_METADATA_BYTES = 16 * 1024
"""Of one call, as HTTP/2 counts them: 32 bytes an entry beside its name and value."""

ROUTER_METADATA_BYTES = 4 * 1024
"""Room on a pod for what a router adds to a client's metadata: its own key, the trace, what it says of the request."""

MIN_PING_INTERVAL_S = 5.0
"""Clients may send keepalive pings this often, also without a call in progress; oftener is answered by GOAWAY."""

MAX_STREAMS_PER_CONNECTION = 1024
MAX_CONCURRENT_CALLS = 4096
"""Above it gRPC answers RESOURCE_EXHAUSTED by itself."""


def server_options(
    *,
    max_receive_bytes: int = MAX_RECEIVE_BYTES,
    max_metadata_bytes: int = MAX_METADATA_BYTES,
    max_connection_age_s: float | None = None,
) -> list[tuple[str, int]]:
    """`max_connection_age_s`: when a client is asked to come back on another connection; calls that run stay."""
    age = [] if max_connection_age_s is None else [("grpc.max_connection_age_ms", round(max_connection_age_s * 1000))]
    return [
        *age,
        # One bound: between gRPC's own two it refuses calls at random.
        ("grpc.max_metadata_size", max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", max_metadata_bytes),
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.http2.min_ping_interval_without_data_ms", round(MIN_PING_INTERVAL_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A half-open connection is noticed within a minute, so its streams do not stay for ever.
        ("grpc.keepalive_time_ms", 40_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Two servers on one port would share its connections at random; a taken port must fail instead.
        ("grpc.so_reuseport", 0),
    ]


def bind(server: grpc.aio.Server, host: str, port: int, tls: ServerTls | None = None) -> int:
    """The bound port, plain without `tls`. Raises ConfigError when the address is taken or is none."""
    check_port(host, port)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, tls.grpc_credentials())
    except RuntimeError:
        bound = 0
    if not bound:
        raise ConfigError(f"cannot listen on {address}: the port is taken or the address is not this machine's")
    return bound


def check_port(host: str, port: int) -> None:
    """Raises ConfigError when nobody could listen there now. 0 and names that do not resolve pass: `bind` judges them.

    Known before anything is built on it, and said in our words: gRPC prints a line of its own.
    """
    if not port:
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None


@contextlib.contextmanager
def stop_signals() -> Iterator[asyncio.Queue[int]]:
    """The signals that ask the process to end, in order, for as long as this is open."""
    event_loop = asyncio.get_running_loop()
    received: asyncio.Queue[int] = asyncio.Queue()
    wanted = (signal.SIGTERM, signal.SIGINT)
    for number in wanted:
        event_loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number in wanted:
            event_loop.remove_signal_handler(number)
