"""`headstart chat`: turns typed by a person, answers streamed, the whole conversation sent each time.

The pod finds all earlier turns in its prefix cache, so a long conversation costs no more than its newest turn.
"""

from __future__ import annotations

import argparse
import sys

from headstart.cli import client
from headstart.cli.resuming import stream_answer
from headstart.cli.values import read_stdin, words
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc

_FAREWELLS = ("/quit", "/exit")
_HELLO_TIMEOUT_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", type=words, metavar="TEXT", help="The system turn.")
    client.add_endpoint_flags(parser)
    client.add_sampling_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    access = client.access_from(parsed)

    def converse() -> int:
        with client.open_channel(parsed.endpoint, access) as channel:
            stub = rpc.InferenceStub(channel)
            # A pod that is not there is told now, not after the first question has been typed.
            model = stub.GetModel(
                pb.GetModelRequest(model=parsed.model), timeout=parsed.timeout or _HELLO_TIMEOUT_S
            ).name
            if sys.stdin.isatty():
                print(f"talking to {model}; /quit or Ctrl-D ends it, Ctrl-C an answer", file=sys.stderr)
            return _converse(stub, parsed)

    return client.report_failure(converse, parsed.endpoint)


def _converse(stub: rpc.InferenceStub, parsed: argparse.Namespace) -> int:
    messages = [client.chat_message("system", parsed.system)] if parsed.system is not None else []
    while (text := _ask()) is not None:
        if not text.strip():
            continue
        if text.strip() in _FAREWELLS:
            break
        messages.append(client.chat_message("user", text))
        request = client.request_from(parsed)
        request.chat.messages.extend(messages)
        messages.append(client.chat_message("assistant", _stream_answer(stub, request, parsed.timeout)))
    return 0


def _ask() -> str | None:
    """One line from the person; None at the end of the input. The prompt sign is only shown on a terminal.

    Raises ConfigError for bytes that are no UTF-8.
    """
    try:
        return read_stdin(lambda: input("> " if sys.stdin.isatty() else ""))
    except EOFError:
        return None


def _stream_answer(stub: rpc.InferenceStub, request: pb.GenerateRequest, timeout: float | None) -> str:
    """Print one answer as it comes and return it. Ctrl-C ends this answer, not the conversation."""
    parts: list[str] = []
    responses = stream_answer(stub, request, timeout=timeout, was_reached=True)
    try:
        for response in responses:
            if response.HasField("chunk"):
                parts.append(response.chunk.text)
                print(response.chunk.text, end="", flush=True)
            else:
                print(flush=True)
                print(client.usage_line(response.finished), file=sys.stderr)
    except KeyboardInterrupt:
        responses.close()
        print(flush=True)
    return "".join(parts)
