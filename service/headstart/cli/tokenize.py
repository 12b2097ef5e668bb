"""`headstart tokenize`: the token ids that a pod makes of a text or of one chat turn."""

from __future__ import annotations

import argparse

from headstart.cli import client
from headstart.cli.values import read_prompt
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="The text; - or nothing reads it from stdin.")
    parser.add_argument("--chat", action="store_true", help="Put it through the chat template as a user's turn.")
    client.add_endpoint_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    text = read_prompt(parsed.text)
    if parsed.chat:
        request = pb.TokenizeRequest(chat=pb.Chat(messages=[client.chat_message("user", text)]))
    else:
        request = pb.TokenizeRequest(text=text)

    access = client.access_from(parsed)

    def call() -> int:
        with client.open_channel(parsed.endpoint, access) as channel:
            response = rpc.InferenceStub(channel).Tokenize(request, timeout=parsed.timeout)
        print(",".join(str(token) for token in response.token_ids))
        return 0

    return client.report_failure(call, parsed.endpoint)
