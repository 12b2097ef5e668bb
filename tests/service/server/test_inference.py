import asyncio
import contextlib
import hashlib

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc
from service.server.conftest import BLOCK, MAX_LEN, VOCAB_SIZE, channel_to, read, until


def chat(*turns, **fields):
    return pb.Chat(
        messages=[pb.Message(role=role, content=[pb.ContentPart(text=text)]) for role, text in turns], **fields
    )


async def test_a_text_is_streamed_to_its_length_with_one_end_and_then_ok(start_pod):
    pod = await start_pod()
    answer = await pod.generate(text="once upon", max_tokens=12)
    assert answer.code is grpc.StatusCode.OK
    assert answer.messages[-1].WhichOneof("event") == "finished"
    assert answer.reason() == "length"
    assert answer.text() == bytes(answer.token_ids()).decode()
    usage = answer.finished().usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (9, 0, len(answer.token_ids()))
    assert usage.completion_tokens == 12
    assert answer.finished().timings.ttft_s > 0.0


async def test_text_token_ids_and_chat_lead_to_the_same_tokens(start_pod):
    pod = await start_pod()
    by_text = await pod.generate(text="hello")
    by_ids = await pod.generate(token_ids=pb.TokenIds(ids=b"hello"))
    assert by_text.token_ids() == by_ids.token_ids()
    turns = chat(("user", "hello"))
    ids = (await pod.inference.Tokenize(pb.TokenizeRequest(chat=turns))).token_ids
    assert list(ids) == [256, *b"user:hello", 257, 256, *b"assistant:"]
    by_chat = await pod.generate(chat=turns, echo_token_ids=True)
    assert [i for chunk in by_chat.chunks() for i in chunk.prompt_token_ids] == list(ids)
    assert by_chat.token_ids() == (await pod.generate(token_ids=pb.TokenIds(ids=ids))).token_ids()


async def test_an_open_last_message_gets_no_generation_prompt(start_pod):
    pod = await start_pod()
    turns = chat(("user", "a"), ("assistant", "b"), continue_final_message=True)
    ids = (await pod.inference.Tokenize(pb.TokenizeRequest(chat=turns))).token_ids
    assert list(ids)[-len(b"assistant:b") :] == list(b"assistant:b")


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
async def test_a_repeated_prompt_is_cached_up_to_its_last_token_at_most_and_the_trailers_say_so(start_pod, length):
    pod = await start_pod()
    ids = pb.TokenIds(ids=range(97, 97 + length))
    cold, warm = await pod.generate(token_ids=ids), await pod.generate(token_ids=ids)
    expected = min(BLOCK * (length // BLOCK), length - 1)
    assert (cold.finished().usage.cached_tokens, warm.finished().usage.cached_tokens) == (0, expected)
    assert warm.token_ids() == cold.token_ids()
    assert warm.trailers["headstart-prompt-tokens"] == str(length)
    assert warm.trailers["headstart-cached-tokens"] == str(expected)
    assert warm.trailers["headstart-pod"] == "pod-0"


async def test_the_trailers_carry_the_load_report_on_the_wire(start_pod):
    """gRPC keeps this key from the application on the client's side, so the bytes are looked at."""
    pod = await start_pod()
    async with wiretap(pod.server.port) as (port, received), channel_to(port) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        assert (await read(stub.Generate(pb.GenerateRequest(text="a", max_tokens=1)))).code is grpc.StatusCode.OK
    assert b"endpoint-load-metrics-bin" in received
    assert b"num_requests_waiting" in received


@contextlib.asynccontextmanager
async def wiretap(port):
    """A port that leads to `port`, and all bytes that came back through it."""
    received = bytearray()

    async def pipe(reader, writer, copy):
        while part := await reader.read(65536):
            copy.extend(part)
            writer.write(part)
            await writer.drain()
        writer.close()

    async def connect(reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, up_writer, bytearray()), pipe(up_reader, writer, received))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], received


async def test_choices_come_interleaved_with_one_end_each_and_the_prompt_counted_once(start_pod):
    pod = await start_pod()
    answer = await pod.generate(n=3, max_tokens=40)
    assert answer.code is grpc.StatusCode.OK
    for index in range(3):
        assert answer.reason(index) == "length"
        assert len(answer.token_ids(index)) == 40
        assert answer.finished(index).usage.prompt_tokens == len("a prompt")
    assert answer.trailers["headstart-prompt-tokens"] == str(len("a prompt"))


async def test_logprobs_have_one_entry_a_token_and_prompt_logprobs_one_a_position_but_the_first(start_pod):
    pod = await start_pod()
    answer = await pod.generate(text="abcdef", logprobs=2, prompt_logprobs=1, n=2)
    for index in range(2):
        entries = [entry for chunk in answer.chunks(index) for entry in chunk.logprobs]
        assert [entry.token_id for entry in entries] == answer.token_ids(index)
        assert all(entry.top and entry.token_bytes == bytes([entry.token_id]) for entry in entries)
    prompt = [entry.token_id for chunk in answer.chunks(0) for entry in chunk.prompt_logprobs]
    assert prompt == list(b"bcdef")
    assert not any(chunk.prompt_logprobs for chunk in answer.chunks(1))


async def test_a_stop_string_ends_the_text_before_it_and_is_named(start_pod):
    pod = await start_pod()
    whole = (await pod.generate(max_tokens=20)).text()
    stop = whole[6:8]
    cut = await pod.generate(max_tokens=20, stop_strings=[stop])
    assert (cut.reason(), cut.finished().stop_string) == ("stop", stop)
    assert cut.text() == whole[: whole.index(stop)]
    by_id = await pod.generate(max_tokens=20, stop_token_ids=[ord(whole[6])])
    assert (by_id.reason(), by_id.finished().stop_token_id) == ("stop", ord(whole[6]))


async def test_initial_metadata_waits_for_the_first_token(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    call = pod.call(max_tokens=4)
    metadata = asyncio.ensure_future(call.initial_metadata())
    await until(lambda: pod.engine.num_in_flight == 1)
    await asyncio.sleep(0.05)
    assert not metadata.done()
    pod.runner.let(1)
    await metadata
    pod.runner.free()
    assert (await read(call)).code is grpc.StatusCode.OK


async def test_a_client_that_leaves_frees_everything_within_one_step(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    call = pod.call(n=3, max_tokens=400)
    await until(lambda: pod.engine.num_in_flight == 3)
    pod.runner.let(3)
    await until(lambda: pod.runner.num_steps == 3)
    call.cancel()
    await until(lambda: pod.services.completions.num_running == 0)
    pod.runner.let(1)
    await pod.quiescent()
    assert pod.runner.num_steps == 4


async def test_a_deadline_ends_the_call_and_the_work(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    answer = await pod.generate(timeout=0.1, max_tokens=400)
    assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: pod.services.completions.num_running == 0)
    pod.runner.let(1)
    await pod.quiescent()
    assert pod.runner.num_steps <= 1


async def test_a_second_request_of_one_id_is_refused_and_the_first_goes_on(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    first = pod.call(request_id="same", n=2, max_tokens=5)
    await until(lambda: pod.engine.num_in_flight == 2)
    second = await pod.generate(request_id="same")
    assert second.code is grpc.StatusCode.ALREADY_EXISTS
    pod.runner.free()
    answer = await read(first)
    assert (answer.code, answer.reason(0), answer.reason(1)) == (grpc.StatusCode.OK, "length", "length")
    assert (await pod.generate(request_id="same")).code is grpc.StatusCode.OK


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read() if hasattr(call, "read") else await call
    return caught.value


def violated_field(error):
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    bad_request = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad_request)
    return bad_request.field_violations[0].field


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("sampling.temperature", {"sampling": pb.Sampling(temperature=float("nan"))}),
        ("token_ids", {"token_ids": pb.TokenIds(ids=[VOCAB_SIZE])}),
        ("token_ids", {"token_ids": pb.TokenIds()}),
        ("text", {"text": "x" * MAX_LEN}),
        ("chat.tools_json[0]", {"chat": chat(("user", "a"), tools_json=["[1"])}),
        ("chat.tools_json[0]", {"chat": chat(("user", "a"), tools_json=["[" * 3000])}),
    ],
)
async def test_a_refusal_names_its_field_in_text_and_details_while_others_stream_on(start_pod, field, fields):
    pod = await start_pod()
    pod.runner.hold()
    other = pod.call(max_tokens=4)
    await until(lambda: pod.engine.num_in_flight == 1)
    error = await refusal(pod.call(**fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(field)
    assert violated_field(error) == field
    pod.runner.free()
    assert (await read(other)).code is grpc.StatusCode.OK


async def test_a_role_that_no_template_may_see_is_the_callers_error(start_pod):
    pod = await start_pod()
    error = await refusal(pod.call(chat=chat(("<|start|>", "a"))))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated_field(error).startswith("chat")


async def test_unknown_models_and_adapters_are_not_found(start_pod):
    pod = await start_pod()
    assert (await pod.generate(model="other")).code is grpc.StatusCode.NOT_FOUND
    assert (await pod.generate(lora="../../etc/passwd")).code is grpc.StatusCode.NOT_FOUND
    assert (await pod.generate(model="tiny")).code is grpc.StatusCode.OK


async def test_without_a_template_chat_is_refused_and_text_still_works(start_pod):
    pod = await start_pod(chats=False)
    assert (await pod.generate(chat=chat(("user", "a")))).code is grpc.StatusCode.FAILED_PRECONDITION
    assert (await pod.generate(text="a")).code is grpc.StatusCode.OK


async def test_a_5_mb_prompt_is_refused_by_name_and_the_next_request_works(start_pod):
    pod = await start_pod()
    for fields in (
        {"text": "word " * 1_000_000},
        {"chat": chat(("user", "word " * 1_000_000))},
        {"token_ids": pb.TokenIds(ids=[1] * 1_200_000)},
    ):
        error = await refusal(pod.call(**fields))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violated_field(error) in fields
        assert (await pod.generate()).code is grpc.StatusCode.OK


async def test_above_32_mib_grpc_itself_refuses_and_the_next_request_works(start_pod):
    pod = await start_pod()
    error = await refusal(pod.call(text="x" * (33 * 1024 * 1024)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await pod.generate()).code is grpc.StatusCode.OK


async def test_a_call_for_another_epoch_is_unavailable(start_pod):
    pod = await start_pod()
    gone = await pod.generate(metadata=(("headstart-epoch", "0" * 32),))
    assert gone.code is grpc.StatusCode.UNAVAILABLE
    here = await pod.generate(metadata=(("headstart-epoch", pod.engine.mirror.epoch),))
    assert here.code is grpc.StatusCode.OK


async def test_a_full_queue_answers_unavailable_with_a_time_to_retry_after(start_pod):
    pod = await start_pod(max_queued_requests=2)
    pod.runner.hold()
    running = pod.call(max_tokens=2)
    await until(lambda: pod.engine.num_in_flight == 1)
    waiting = [pod.call(max_tokens=2) for _ in range(2)]
    await until(lambda: pod.engine.num_in_flight == 3)
    full = await pod.generate()
    assert full.code is grpc.StatusCode.UNAVAILABLE
    assert int(full.trailers["grpc-retry-pushback-ms"]) > 0
    pod.runner.free()
    for call in (running, *waiting):
        assert (await read(call)).code is grpc.StatusCode.OK


async def test_a_resumed_request_goes_on_where_it_was_and_counts_what_was_delivered(start_pod):
    pod = await start_pod()
    whole = await pod.generate(max_tokens=10)
    emitted = whole.token_ids()[:4]
    rest = await pod.generate(max_tokens=10, resume=pb.Resume(choices=[pb.Resume.Choice(token_ids=emitted)]))
    assert emitted + rest.token_ids() == whole.token_ids()
    assert rest.finished().usage.completion_tokens == 10
    assert rest.finished().usage.prompt_tokens == whole.finished().usage.prompt_tokens


async def test_a_fault_of_one_request_ends_it_internal_after_its_end_and_no_other(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    pod.runner.faulty_ids.add("bad")
    bad, good = pod.call(request_id="bad"), pod.call(request_id="good", text="another")
    await until(lambda: pod.engine.num_in_flight == 2)
    pod.runner.free()
    bad, good = await read(bad), await read(good)
    assert (bad.code, bad.reason()) == (grpc.StatusCode.INTERNAL, "error")
    assert "non-finite logits" in bad.details
    assert (good.code, good.reason()) == (grpc.StatusCode.OK, "length")


async def test_a_client_that_does_not_read_stalls_nobody_and_gets_every_token_once(start_pod):
    pod = await start_pod()
    slow = pod.call(max_tokens=MAX_LEN - 8, logprobs=20)
    others = await asyncio.gather(*(pod.generate(text=f"prompt {n}", max_tokens=100) for n in range(5)))
    assert all(other.code is grpc.StatusCode.OK for other in others)
    answer = await read(slow)
    assert len(answer.token_ids()) == MAX_LEN - 8
    assert sum(len(chunk.logprobs) for chunk in answer.chunks()) == MAX_LEN - 8


async def test_a_stopping_server_ends_streams_cancelled_with_what_they_have_then_unavailable(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    call = pod.call(n=2, max_tokens=400)
    await until(lambda: pod.engine.num_in_flight == 2)
    pod.runner.let(5)
    await until(lambda: pod.runner.num_steps == 5)
    pod.services.completions.stop()
    pod.runner.free()
    answer = await read(call)
    assert answer.code is grpc.StatusCode.UNAVAILABLE
    assert (answer.reason(0), answer.reason(1)) == ("cancelled", "cancelled")
    assert answer.finished().usage.completion_tokens == len(answer.token_ids()) > 0
    assert (await pod.generate()).code is grpc.StatusCode.UNAVAILABLE


async def test_open_calls_hear_of_a_dead_engine_and_of_their_partial_usage(start_pod):
    pod = await start_pod()
    pod.runner.hold()
    call = pod.call(max_tokens=400)
    await until(lambda: pod.engine.num_in_flight == 1)

    def broken(*_):
        raise RuntimeError("an invariant is broken")

    pod.scheduler.commit = broken
    pod.runner.free()
    answer = await read(call)
    assert (answer.code, answer.reason()) == (grpc.StatusCode.UNAVAILABLE, "cancelled")
    assert (await pod.generate()).code is grpc.StatusCode.UNAVAILABLE


async def test_the_tokenizer_is_handed_out_whole_with_its_digest(start_pod):
    pod = await start_pod()
    chunks = [chunk async for chunk in pod.inference.GetTokenizer(pb.GetTokenizerRequest())]
    document = b"".join(chunk.content for chunk in chunks)
    assert document == pod.tokenizer.to_document()
    assert chunks[-1].digest == hashlib.sha256(document).hexdigest() == pod.tokenizer.fingerprint


async def test_the_model_tells_its_shape(start_pod):
    pod = await start_pod()
    model = await pod.inference.GetModel(pb.GetModelRequest())
    assert (model.name, model.context_length, model.block_size) == ("tiny", MAX_LEN, BLOCK)


async def test_half_read_streams_leave_nothing_behind(start_pod):
    pod = await start_pod()
    channels = [channel_to(pod.server.port) for _ in range(4)]
    for number in range(40):
        stub = channels[number % 4].unary_stream(
            "/headstart.v1.Inference/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        call = stub(pb.GenerateRequest(text=f"prompt {number}", max_tokens=300))
        await call.read()
        call.cancel()
    for channel in channels:
        await channel.close()
    await pod.quiescent()
    assert (await pod.generate()).code is grpc.StatusCode.OK


async def test_questions_about_another_model_are_not_answered(start_pod):
    pod = await start_pod()
    own = (await pod.inference.GetModel(pb.GetModelRequest())).name
    assert (await pod.inference.GetModel(pb.GetModelRequest(model=own))).name == own
    assert await pod.inference.GetModel(pb.GetModelRequest(model="x")).code() is grpc.StatusCode.NOT_FOUND
    assert await pod.inference.GetTokenizer(pb.GetTokenizerRequest(model="x")).code() is grpc.StatusCode.NOT_FOUND


async def test_questions_about_the_pod_refuse_fields_that_it_does_not_know(start_pod):
    pod = await start_pod()
    unknown = b"\xf8\x07\x01"  # field 127, varint 1
    model = pod.inference.GetModel(pb.GetModelRequest.FromString(unknown))
    tokenizer = pod.inference.GetTokenizer(pb.GetTokenizerRequest.FromString(unknown))
    for call in (model, tokenizer):
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
