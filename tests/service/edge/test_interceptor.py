import asyncio

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2, status_pb2
from headstart import errors
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc
from headstart.edge.interceptor import StatusInterceptor


class Failing(inference_pb2_grpc.InferenceServicer):
    """Raises what it is told to: at once, or after one message of a stream."""

    def __init__(self):
        self.error = None
        self.tasks = []
        self.port = 0

    async def Tokenize(self, request, context):
        raise self.error

    async def Generate(self, request, context):
        self.tasks.append(asyncio.current_task())
        context.set_trailing_metadata((("a-trailer", "kept"),))
        await context.write(pb.GenerateResponse())
        if self.error is not None:
            raise self.error
        await asyncio.sleep(60)


@pytest_asyncio.fixture
async def failing():
    servicer = Failing()
    server = grpc.aio.server(interceptors=[StatusInterceptor()])
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{servicer.port}") as channel:
        yield servicer, inference_pb2_grpc.InferenceStub(channel)
    await server.stop(None)


async def unary_error(stub, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Tokenize(pb.TokenizeRequest(**fields))
    return caught.value


async def stream_error(stub, **fields):
    call = stub.Generate(pb.GenerateRequest(**fields))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError("n", "too many"),
        errors.NotFoundError("model: unknown"),
        errors.AlreadyExistsError("request_id: running"),
        errors.UnavailableError("full", retry_after_s=1.5),
        errors.FailedPreconditionError("busy"),
        errors.DeadlineExceededError("late"),
        errors.UnimplementedError("not built"),
        errors.InternalError("non-finite logits"),
    ],
    ids=lambda error: error.status,
)
@pytest.mark.parametrize("call", [unary_error, stream_error])
async def test_each_error_becomes_its_status_with_its_text(failing, error, call):
    servicer, stub = failing
    servicer.error = error
    status = await call(stub)
    assert (status.code(), status.details()) == (grpc.StatusCode[error.status], str(error))


async def test_an_invalid_request_carries_its_field_and_the_trailers_set_before_stay(failing):
    servicer, stub = failing
    servicer.error = errors.InvalidRequestError("sampling.top_p", "must be a number")
    trailers = dict((await stream_error(stub)).trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    bad_request = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad_request)
    (violation,) = bad_request.field_violations
    assert (violation.field, violation.description) == ("sampling.top_p", "must be a number")
    assert trailers["a-trailer"] == "kept"


async def test_unavailable_says_when_to_come_back(failing):
    servicer, stub = failing
    servicer.error = errors.UnavailableError("full", retry_after_s=1.5)
    assert dict((await unary_error(stub)).trailing_metadata())["grpc-retry-pushback-ms"] == "1500"


@pytest.mark.parametrize("call", [unary_error, stream_error])
async def test_the_unexpected_is_internal_and_its_details_are_in_the_log_only(failing, caplog, call):
    servicer, stub = failing
    servicer.error = KeyError("/secret/path of another tenant")
    status = await call(stub)
    assert status.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in status.details()
    assert "KeyError" not in status.details()
    reference = status.details().rsplit(" ", 1)[1]
    (record,) = [record for record in caplog.records if reference in record.getMessage()]
    assert record.exc_info[1] is servicer.error


async def test_the_reference_of_an_internal_error_is_the_callers_request_id_when_it_gave_one(failing):
    servicer, stub = failing
    servicer.error = KeyError("x")
    assert (await stream_error(stub, request_id="mine")).details().endswith(" mine")


async def test_a_handler_that_is_cancelled_by_us_still_gives_its_client_a_status(failing):
    servicer, stub = failing
    call = stub.Generate(pb.GenerateRequest())
    await call.read()
    servicer.tasks[0].cancel()
    assert await asyncio.wait_for(call.code(), 5) is grpc.StatusCode.UNAVAILABLE


async def test_a_handler_that_raises_cancelled_error_itself_still_gives_its_client_a_status(failing):
    servicer, stub = failing
    servicer.error = asyncio.CancelledError()
    call = asyncio.ensure_future(stream_error(stub))
    assert (await asyncio.wait_for(call, 5)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_leaves_ends_the_handler(failing, caplog):
    servicer, stub = failing
    call = stub.Generate(pb.GenerateRequest())
    await call.read()
    call.cancel()
    await asyncio.wait(servicer.tasks, timeout=5)
    assert servicer.tasks[0].done()
    assert not caplog.records


async def test_an_unknown_method_is_unimplemented_still(failing):
    servicer, _ = failing
    async with grpc.aio.insecure_channel(f"127.0.0.1:{servicer.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/headstart.v1.Inference/Unheard")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_message_are_the_callers_error_without_our_class_names(failing):
    servicer, _ = failing
    async with grpc.aio.insecure_channel(f"127.0.0.1:{servicer.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/headstart.v1.Inference/Tokenize")(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "protobuf" not in caught.value.details()
