"""What the client commands share: the endpoint, the prompt's options, one stream of answers, errors in words."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc

from headstart.cli.values import MAX_INT32, MAX_UINT32, MAX_UINT64, endpoint, seconds, whole, words
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.keyed_channel import KeyedChannel
from headstart.edge.keys import first_key
from headstart.edge.listening import MIN_PING_INTERVAL_S
from headstart.edge.tls import NamedFile, client_credentials
from headstart.errors import ConfigError

KEY_VARIABLE = "HEADSTART_API_KEY"
DEFAULT_ENDPOINT = "127.0.0.1:50051"
# The server takes prompts up to this size; answers with many logprobs may be as large.
_MAX_MESSAGE_BYTES = 32 << 20
_PING_INTERVAL_S = MIN_PING_INTERVAL_S + 1.0  # servers of ours close connections on which pings come oftener than that
_PING_TIMEOUT_S = 5.0
_UNKNOWN_METHOD = "Method not found!"  # gRPC's own words, where a server has no such service
# Words of gRPC's when no connection came about, and what they mean at this end.
_HINTS = {
    "Socket closed": "does {target} want TLS? Then add --tls or --ca-file",
    "WRONG_VERSION_NUMBER": "does {target} speak plain text? Then leave out --tls and --ca-file",
    "Hostname Verification": "the certificate of {target} names another host: --tls-server-name says which to look for",
    "CERTIFICATE_VERIFY_FAILED": "--ca-file names who signed the server's certificate",
    "http1.x": "{target} speaks HTTP; the gRPC port is another one, 50051 by default",
    "": "is a pod running at {target}?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to come in at a server. `credentials` are None for a plain connection, `key` is "" without one.

    `server_name` is what stands in the server's certificate, "" for the endpoint's own host.
    """

    key: str = field(default="", repr=False)
    credentials: grpc.ChannelCredentials | None = None
    server_name: str = ""


def add_endpoint_flags(parser: argparse.ArgumentParser) -> None:
    """Where to, how to come in there, and how long at most."""
    parser.add_argument(
        "--endpoint",
        type=endpoint,
        default=DEFAULT_ENDPOINT,
        help=f"host:port of the gRPC server [{DEFAULT_ENDPOINT}].",
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="Give up after this long [never].")
    add_access_flags(parser)


def add_access_flags(parser: argparse.ArgumentParser) -> None:
    """How to come in at a server."""
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"A file of API keys, one a line, of which the first is used [the variable {KEY_VARIABLE}].",
    )
    group.add_argument("--tls", action="store_true", help="Encrypt; the server's certificate is checked.")
    group.add_argument("--ca-file", metavar="FILE", default="", help="Whom to trust in it, in PEM; implies --tls.")
    group.add_argument("--cert-file", metavar="FILE", default="", help="A certificate to show, if one is asked for.")
    group.add_argument("--key-file", metavar="FILE", default="", help="The private key of that certificate.")
    group.add_argument(
        "--tls-server-name", metavar="NAME", default="", help="The name in the certificate, if not the endpoint's."
    )


def access_from(parsed: argparse.Namespace) -> Access:
    """The choices of `add_access_flags`. Raises ConfigError that names the flag, and never shows a key."""
    is_encrypted = parsed.tls or bool(parsed.ca_file)
    for flag in ("cert_file", "key_file", "tls_server_name"):
        if getattr(parsed, flag) and not is_encrypted:
            raise ConfigError(f"--{flag.replace('_', '-')}: needs --tls or --ca-file as well")
    files = (
        NamedFile("--ca-file", parsed.ca_file),
        NamedFile("--cert-file", parsed.cert_file),
        NamedFile("--key-file", parsed.key_file),
    )
    return Access(
        key=_read_key(parsed.api_key_file),
        credentials=client_credentials(*files) if is_encrypted else None,
        server_name=parsed.tls_server_name,
    )


def _read_key(path: str | None) -> str:
    """The first line: a tenant's file has a second one while its key is replaced."""
    origin = KEY_VARIABLE if path is None else f"--api-key-file: {path}"
    try:
        text = os.environ.get(KEY_VARIABLE, "") if path is None else Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{origin} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{origin} holds no key: it is not ASCII") from None
    key = first_key(text)
    if path is not None and not key:
        raise ConfigError(f"{origin} is empty")
    if not all("!" <= char <= "~" for char in key):
        raise ConfigError(f"{origin}: a key is one word of visible ASCII characters")
    return key


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How the answer is chosen. What is not given is left to the server."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens", type=whole(1, MAX_UINT32), help="Most tokens of the answer [what fits the context]."
    )
    group.add_argument("--temperature", type=float, help="0 takes the most likely token [1].")
    group.add_argument("--top-p", type=float)
    group.add_argument("--top-k", type=whole(-1, MAX_INT32))
    group.add_argument("--min-p", type=float)
    group.add_argument("--seed", type=whole(0, MAX_UINT64), help="The same seed gives the same answer [drawn].")
    group.add_argument(
        "--stop", type=words, action="append", default=[], metavar="TEXT", help="End before this text; repeatable."
    )
    group.add_argument("--cache-salt", type=words, default="", help="Share cached prefixes only within one salt.")
    group.add_argument("--model", type=words, default="", help="The served model's name [whatever is served].")


def request_from(parsed: argparse.Namespace) -> pb.GenerateRequest:
    """A request with the options of `add_sampling_flags`; the prompt is still to be set."""
    given = {name: getattr(parsed, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")}
    return pb.GenerateRequest(
        model=parsed.model,
        sampling=pb.Sampling(**{name: value for name, value in given.items() if value is not None}),
        max_tokens=parsed.max_tokens,
        stop_strings=parsed.stop,
        cache_salt=parsed.cache_salt,
    )


def chat_message(role: str, text: str) -> pb.Message:
    """One turn of plain text."""
    return pb.Message(role=role, content=[pb.ContentPart(text=text)])


def channel_options(access: Access) -> list[tuple[str, int | str]]:
    """Of every channel of a command: a server that is gone or hangs ends its calls UNAVAILABLE within seconds."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.enable_retries", 0),
        # A program that has started again is found within a second: gRPC's own pauses grow to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # A server that takes a call and then hangs is given up like one that is gone: its stream ends UNAVAILABLE.
        ("grpc.keepalive_time_ms", round(_PING_INTERVAL_S * 1000)),
        ("grpc.keepalive_timeout_ms", round(_PING_TIMEOUT_S * 1000)),
        ("grpc.http2.ping_timeout_ms", round(_PING_TIMEOUT_S * 1000)),  # one of gRPC's own pings may be on its way
        ("grpc.http2.max_pings_without_data", 0),  # no bound: a long prompt gives no data for minutes
        ("grpc.min_reconnect_backoff_ms", round(_PING_TIMEOUT_S * 1000)),  # that is what a connection may take, too
    ]
    if access.server_name:
        options.append(("grpc.ssl_target_name_override", access.server_name))
    return options


@contextmanager
def open_channel(target: str, access: Access) -> Iterator[grpc.Channel]:
    """A channel, closed on the way out."""
    options = channel_options(access)
    if access.credentials is None:
        channel = grpc.insecure_channel(target, options=options)
    else:
        channel = grpc.secure_channel(target, access.credentials, options=options)
    with channel:
        # A keyed channel has what stubs use of a channel, and no more.
        yield cast(grpc.Channel, KeyedChannel(channel, lambda: access.key)) if access.key else channel


def report_failure(
    action: Callable[[], int], target: str, *, not_offered: str = "is it the gRPC port of a pod or of a router?"
) -> int:
    """Run `action`; a failed call becomes one line on stderr and exit code 1.

    `not_offered` is the hint for a server that has no such call.
    """
    try:
        return action()
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNIMPLEMENTED and details == _UNKNOWN_METHOD:
            details = f"{target} does not offer this ({not_offered})"
        elif code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
            hint = next(hint for words, hint in _HINTS.items() if words in details)
            details += f" ({hint.format(target=target)})"
        print(f"headstart: {code.name}: {details}", file=sys.stderr)
        return 1


def usage_line(finished: pb.Finished) -> str:
    """What a finished answer cost, in one line."""
    usage, timings = finished.usage, finished.timings
    reason = pb.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()
    return (
        f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached; "
        f"{usage.completion_tokens} generated ({reason}); first token after {timings.ttft_s:.3f} s"
    )
