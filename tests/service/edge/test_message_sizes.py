"""What is refused by its outer fields alone: names, sizes at the edge, and that nothing was parsed."""

from types import SimpleNamespace

import grpc.aio
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc, prefix_cache_pb2, prefix_cache_pb2_grpc
from headstart.edge.interceptor import StatusInterceptor
from headstart.edge.limits import Limits
from headstart.edge.listening import server_options
from headstart.edge.message_sizes import ALWAYS_PARSED_BYTES, SizeInterceptor, check_fields
from headstart.errors import InvalidRequestError, TooLargeError, UnavailableError

LIMITS = Limits(model="tiny", max_len=256, vocab_size=1000, max_token_bytes=8)
WIDE = Limits(model="wide", max_len=1 << 20, vocab_size=1 << 17, max_token_bytes=400)
GENERATE, LOOKUP = pb.GenerateRequest.DESCRIPTOR, prefix_cache_pb2.LookupRequest.DESCRIPTOR
NO_UTF8 = b"\xff"  # where a text should be, protobuf's parser refuses it: what is refused otherwise was not parsed


def varint(value):
    head = b""
    while value > 0x7F:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


SIZE = ALWAYS_PARSED_BYTES + 1
LARGE = {
    "request_id": field(1, NO_UTF8 * SIZE),
    "text": field(3, NO_UTF8 * SIZE),
    "token_ids": field(4, field(1, b"\x01" * SIZE)),
    "chat": field(5, b"\x0a\x00" * (SIZE // 2)),
    "sampling": field(6, b"\x4a\x00" * (SIZE // 2)),
    "stop_strings": field(10, b"") * (SIZE // 2 + 1),
    "stop_token_ids": b"\x58\x01" * (SIZE // 2 + 1),
    "cache_salt": field(1, b"an-id") + field(18, NO_UTF8 * SIZE),
    "resume": field(20, b"\x0a\x00" * (SIZE // 2)),
    "n": b"\x78\x01" * (SIZE // 2 + 1),
    "#1003": field(1003, b"x" * SIZE),
    "#1004": field(1004, b"") * (SIZE // 3 + 1),
    "#1005": (varint(1005 << 3 | 1) + b"x" * 8) * (SIZE // 10 + 1),
}


@pytest.mark.parametrize("name", LARGE)
def test_the_field_that_is_too_large_is_named(name):
    with pytest.raises(TooLargeError) as refused:
        check_fields(LARGE[name], GENERATE, LIMITS)
    assert refused.value.field == name


def test_the_fields_of_a_lookup_have_their_own_bounds():
    for name, raw in {"token_ids": field(1, b"\x01" * 8000), "hashes": field(2, b"x" * 32) * 300}.items():
        with pytest.raises(TooLargeError) as refused:
            check_fields(raw, LOOKUP, LIMITS)
        assert refused.value.field == name
    check_fields(field(2, b"x" * 32) * 256, LOOKUP, LIMITS)


@pytest.mark.parametrize(
    "raw", [b"\xff" * 20, b"\x80", field(1, b"abc")[:-1], b"\x09" + b"1234567", b"\x0b\x0c"], ids=repr
)
def test_bytes_that_are_no_fields_are_no_message(raw):
    with pytest.raises(InvalidRequestError, match="request: not a message"):
        check_fields(raw, GENERATE, LIMITS)


@pytest.mark.parametrize("limits", [LIMITS, WIDE])
def test_a_request_that_is_legal_in_every_field_passes_at_its_limits(limits):
    text = "x" * limits.max_text_bytes
    parts = [pb.ContentPart(text="") for _ in range(limits.max_content_parts - 1)]
    messages = [pb.Message(role="user") for _ in range(limits.max_messages - 1)]
    ids = [(1 << 32) - 1] * limits.max_len
    shared = {
        "request_id": "i" * limits.max_request_id_bytes,
        "cache_salt": "s" * limits.max_cache_salt_bytes,
        "sampling": pb.Sampling(logit_bias={(1 << 32) - 1 - i: 1.0 for i in range(limits.max_logit_bias)}),
        "stop_strings": ["s" * limits.max_stop_string_bytes] * limits.max_stop_strings,
        "stop_token_ids": ids[: limits.max_stop_token_ids],
        "n": limits.max_n,
        "resume": pb.Resume(choices=[pb.Resume.Choice(token_ids=ids)] * limits.max_n),
    }
    chat = pb.Chat(messages=[*messages, pb.Message(content=[*parts, pb.ContentPart(text=text)])])
    for prompt in ({"text": text}, {"token_ids": pb.TokenIds(ids=ids)}, {"chat": chat}):
        check_fields(pb.GenerateRequest(**shared, **prompt).SerializeToString(), GENERATE, limits)
        if "token_ids" not in prompt:
            raw = pb.TokenizeRequest(**prompt).SerializeToString()
            check_fields(raw, pb.TokenizeRequest.DESCRIPTOR, limits)


class Counting(inference_pb2_grpc.InferenceServicer, prefix_cache_pb2_grpc.PrefixCacheServicer):
    """Answers whatever reaches it with how many bytes that was."""

    async def Tokenize(self, request, context):
        return pb.TokenizeResponse(token_ids=[request.ByteSize()])

    async def Generate(self, request, context):
        await context.write(pb.GenerateResponse(chunk=pb.Chunk(index=request.ByteSize())))

    async def Lookup(self, request, context):
        return prefix_cache_pb2.LookupResponse(matched_tokens=request.ByteSize())


@pytest_asyncio.fixture
async def channel():
    server = grpc.aio.server(
        interceptors=[StatusInterceptor(), SizeInterceptor(lambda: LIMITS)], options=server_options()
    )
    inference_pb2_grpc.add_InferenceServicer_to_server(Counting(), server)
    prefix_cache_pb2_grpc.add_PrefixCacheServicer_to_server(Counting(), server)
    reflection.enable_server_reflection((reflection.SERVICE_NAME,), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as opened:
        yield opened
    await server.stop(None)


async def refused_field(channel, method, raw):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_stream(f"/headstart.v1.{method}")(raw).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    bad_request = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad_request)
    (violation,) = bad_request.field_violations
    return violation.field


async def test_every_method_refuses_what_is_too_large_by_name_and_then_serves_the_next(channel):
    assert await refused_field(channel, "Inference/Generate", LARGE["text"]) == "text"
    assert await refused_field(channel, "Inference/Tokenize", field(2, NO_UTF8 * SIZE)) == "text"
    assert await refused_field(channel, "Inference/GetModel", field(1, b"x" * SIZE)) == "model"
    assert await refused_field(channel, "Inference/GetModel", field(9, b"x" * SIZE)) == "#9"
    assert await refused_field(channel, "PrefixCache/Lookup", field(1, b"\x01" * SIZE)) == "token_ids"
    stub = inference_pb2_grpc.InferenceStub(channel)
    assert list((await stub.Tokenize(pb.TokenizeRequest(text="a"))).token_ids) == [3]


async def test_up_to_the_bound_it_is_left_to_the_checks_of_each_field(channel):
    stub = inference_pb2_grpc.InferenceStub(channel)
    request = pb.TokenizeRequest(text="x" * (ALWAYS_PARSED_BYTES - 5))
    assert request.ByteSize() == ALWAYS_PARSED_BYTES
    assert list((await stub.Tokenize(request)).token_ids) == [ALWAYS_PARSED_BYTES]
    request.text += "x"
    assert await refused_field(channel, "Inference/Tokenize", request.SerializeToString()) == "text"


async def test_a_large_question_to_reflection_is_answered_as_an_empty_one(channel):
    ask = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answers = [answer async for answer in ask(iter([b"\x3a\x00", field(7, b"x" * 70_000), b"\x3a\x00"]))]
    assert [answer.HasField("error_response") for answer in answers] == [False, True, False]


async def test_while_no_limits_are_known_a_large_request_is_put_off():
    def unknown():
        raise UnavailableError("not yet")

    handler = grpc.unary_unary_rpc_method_handler(None, request_deserializer=pb.TokenizeRequest.FromString)

    async def continuation(details):
        return handler

    details = SimpleNamespace(method="/headstart.v1.Inference/Tokenize")
    bounded = await SizeInterceptor(unknown).intercept_service(continuation, details)
    assert bounded.request_deserializer(b"\x12\x01a") == pb.TokenizeRequest(text="a")
    assert bounded.request_deserializer(field(2, b"a" * SIZE)).error.status == "UNAVAILABLE"
