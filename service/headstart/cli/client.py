"""What the client commands share: the endpoint, the prompt's options, one stream of answers, errors in words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from headstart.cli.values import MAX_INT32, MAX_UINT32, MAX_UINT64, endpoint, seconds, whole
from headstart.contract.proto import inference_pb2 as pb

DEFAULT_ENDPOINT = "127.0.0.1:50051"
# The server takes prompts up to this size; answers with many logprobs may be as large.
_MAX_MESSAGE_BYTES = 32 << 20


def add_endpoint_flags(parser: argparse.ArgumentParser) -> None:
    """Where to, and how long at most."""
    parser.add_argument(
        "--endpoint",
        type=endpoint,
        default=DEFAULT_ENDPOINT,
        help=f"host:port of the gRPC server [{DEFAULT_ENDPOINT}].",
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="Give up after this long [never].")


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
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="End before this text; repeatable.")
    group.add_argument("--cache-salt", default="", help="Share cached prefixes only within one salt.")
    group.add_argument("--model", default="", help="The served model's name [whatever is served].")


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


@contextmanager
def open_channel(target: str) -> Iterator[grpc.Channel]:
    """A plaintext channel, closed on the way out."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(target, options=options) as channel:
        yield channel


def report_failure(action: Callable[[], int], target: str) -> int:
    """Run `action`; a failed call becomes one line on stderr and exit code 1."""
    try:
        return action()
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        is_unreached = code is grpc.StatusCode.UNAVAILABLE and "connect" in (details or "")
        hint = f" (is a pod running at {target}?)" if is_unreached else ""
        print(f"headstart: {code.name}: {details}{hint}", file=sys.stderr)
        return 1


def usage_line(finished: pb.Finished) -> str:
    """What a finished answer cost, in one line."""
    usage, timings = finished.usage, finished.timings
    reason = pb.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()
    return (
        f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached; "
        f"{usage.completion_tokens} generated ({reason}); first token after {timings.ttft_s:.3f} s"
    )
