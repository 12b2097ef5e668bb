"""`headstart generate`: one prompt to a pod, the answer streamed to stdout."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator

from google.protobuf.json_format import MessageToDict

from headstart.cli import client
from headstart.cli.resuming import stream_answer
from headstart.cli.values import MAX_INT32, MAX_UINT32, read_prompt, token_ids, whole, words
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="The text; - or nothing reads it from stdin.")
    parser.add_argument(
        "--token-ids", type=token_ids, metavar="IDS", help="The prompt as token ids, separated by commas, instead."
    )
    parser.add_argument("--chat", action="store_true", help="Send the prompt as a user's turn of a chat.")
    parser.add_argument("--system", type=words, metavar="TEXT", help="The system turn before it; implies --chat.")
    parser.add_argument("--json", action="store_true", help="Print each message of the stream as one JSON line.")
    parser.add_argument(
        "--check-cache",
        action="store_true",
        help="Send it twice, one after the other, and fail unless some of it was cached the second time.",
    )
    client.add_endpoint_flags(parser)
    client.add_sampling_flags(parser)
    parser.add_argument("--n", type=whole(1, MAX_UINT32), default=1, help="Number of answers [1].")
    parser.add_argument(
        "--min-tokens", type=whole(0, MAX_UINT32), default=0, help="No end before this many tokens [0]."
    )
    parser.add_argument("--ignore-eos", action="store_true", help="Go on after the model's end token.")
    parser.add_argument(
        "--logprobs", type=whole(0, MAX_UINT32), help="With --json: logprobs, and this many others per token."
    )
    parser.add_argument(
        "--priority",
        type=whole(-MAX_INT32 - 1, MAX_INT32),
        default=0,
        help="Smaller runs first where the pod heeds it [0].",
    )
    parser.add_argument("--request-id", type=words, default="", help="Name of the request [made by the pod].")


def run(parsed: argparse.Namespace) -> int:
    request = build_request(parsed)
    access = client.access_from(parsed)

    def stream() -> int:
        with client.open_channel(parsed.endpoint, access) as channel:
            stub = rpc.InferenceStub(channel)
            usage = _print_answer(stub, request, parsed)
            if not parsed.check_cache:
                return 0
            usage = _print_answer(stub, request, parsed)
        if usage.cached_tokens:
            return 0
        print(
            f"headstart: the second time none of the {usage.prompt_tokens} prompt tokens were cached; only whole "
            "blocks can be, of 16 tokens by default",
            file=sys.stderr,
        )
        return 1

    return client.report_failure(stream, parsed.endpoint)


def _print_answer(stub: rpc.InferenceStub, request: pb.GenerateRequest, parsed: argparse.Namespace) -> pb.Usage:
    """One answer as it comes; what it cost. Raises RpcError."""
    usage = pb.Usage()

    def noted() -> Iterator[pb.GenerateResponse]:
        for response in stream_answer(stub, request, timeout=parsed.timeout):
            if response.HasField("finished"):
                usage.CopyFrom(response.finished.usage)
            yield response

    print_json(noted()) if parsed.json else print_text(noted(), parsed.n)
    return usage


def build_request(parsed: argparse.Namespace) -> pb.GenerateRequest:
    """The message for the flags. Raises ConfigError for flags that exclude each other or fit no field."""
    _refuse_contradictions(parsed)
    try:
        request = client.request_from(parsed)
        request.MergeFrom(
            pb.GenerateRequest(
                request_id=parsed.request_id,
                n=parsed.n,
                min_tokens=parsed.min_tokens,
                ignore_eos=parsed.ignore_eos,
                logprobs=parsed.logprobs,
                priority=parsed.priority,
            )
        )
        _set_prompt(request, parsed)
    except ValueError as error:
        raise ConfigError(f"a value does not fit its field: {error}") from None
    return request


def _refuse_contradictions(parsed: argparse.Namespace) -> None:
    if parsed.token_ids is not None:
        others = {
            "a text": parsed.prompt is not None,
            "--chat": parsed.chat,
            "--system": parsed.system is not None,
        }
        for name, is_given in others.items():
            if is_given:
                raise ConfigError(f"--token-ids is the whole prompt; leave out {name}")
    if parsed.logprobs is not None and not parsed.json:
        raise ConfigError("--logprobs is shown with --json only; give both")


def _set_prompt(request: pb.GenerateRequest, parsed: argparse.Namespace) -> None:
    if parsed.token_ids is not None:
        request.token_ids.ids.extend(parsed.token_ids)
        request.token_ids.SetInParent()
        return
    text = read_prompt(parsed.prompt)
    if not parsed.chat and parsed.system is None:
        request.text = text
        return
    if parsed.system is not None:
        request.chat.messages.append(client.chat_message("system", parsed.system))
    request.chat.messages.append(client.chat_message("user", text))


def print_json(responses: Iterable[pb.GenerateResponse]) -> None:
    """Each message as it comes: {"chunk": ...} or {"finished": ...}, with the field names of the proto."""
    for response in responses:
        fields = MessageToDict(response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps(fields, ensure_ascii=False), flush=True)


def print_text(responses: Iterable[pb.GenerateResponse], num_choices: int) -> None:
    """One answer is streamed; several are printed whole, one after the other. What they cost goes to stderr."""
    texts: dict[int, str] = {}
    for response in responses:
        if response.HasField("chunk"):
            chunk = response.chunk
            if num_choices <= 1:
                print(chunk.text, end="", flush=True)
            else:
                texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
            continue
        finished = response.finished
        print(f"[{finished.index}] {texts.pop(finished.index, '')}" if num_choices > 1 else "", flush=True)
        print(client.usage_line(finished), file=sys.stderr)
