import math

import pytest
from headstart.contract import codec
from headstart.contract.events import Cleared, Digest, EventBatch, Removed, Stored
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2, prefix_cache_pb2
from hypothesis import given
from hypothesis import strategies as st

ONE_MEBIBYTE = 1024 * 1024
HASH = st.integers(0, 2**64 - 1)
TOP_IDS, TOP_LOGPROBS = list(range(20)), [-1.0] * 20
EVENTS = st.one_of(st.builds(Stored, HASH, HASH), st.builds(Removed, HASH), st.builds(Cleared))

IDENTITY = PodIdentity(
    epoch="e1",
    pod_name="pod-0",
    pod_uid="uid-0",
    model="tiny",
    model_fingerprint="aa",
    tokenizer_fingerprint="bb",
    hash_root_digest="cc",
    numerics_id="f32",
    block_size=16,
    capacity_blocks=64,
    max_num_seqs=8,
    context_length=512,
    vocab_size=300,
    eos_token_ids=(2,),
    features={"prefix_caching": "on"},
)


def token_bytes(token_id):
    return bytes([token_id % 256])


@given(st.lists(EVENTS, max_size=30), st.integers(1, 2**60))
def test_a_delta_survives_the_wire_in_order_with_its_numbers_and_digest(events, seq):
    update = codec.encode_delta(EventBatch(seq, tuple(events), Digest(3, 2**64 - 1)))
    received = prefix_cache_pb2.CacheUpdate.FromString(update.SerializeToString())
    assert codec.decode_delta(received.delta) == tuple(events)
    assert (received.delta.prev_seq, received.delta.seq) == (seq - 1, seq)
    assert (received.digest.seq, received.digest.count, received.digest.xor) == (seq, 3, 2**64 - 1)


def test_an_event_of_an_unknown_kind_is_not_taken_for_a_known_one():
    with pytest.raises(ValueError, match="unknown kind"):
        codec.decode_delta(prefix_cache_pb2.Delta(events=[prefix_cache_pb2.CacheEvent()]))


def test_a_snapshot_of_200_000_blocks_is_cut_into_messages_below_one_mebibyte_and_only_the_last_is_marked():
    hashes = list(range(2**63, 2**63 + 200_000))
    columns = [(hashes[i : i + 4096], hashes[i : i + 4096]) for i in range(0, len(hashes), 4096)]
    updates = list(codec.encode_snapshot(7, columns))
    assert [value for update in updates for value in update.snapshot.hashes] == hashes
    assert max(update.ByteSize() for update in updates) < ONE_MEBIBYTE
    assert [update.snapshot.last for update in updates] == [False] * (len(updates) - 1) + [True]
    assert {update.snapshot.seq for update in updates} == {7}


def test_a_snapshot_of_an_empty_cache_is_one_empty_last_chunk():
    (update,) = codec.encode_snapshot(0, [])
    assert (update.snapshot.last, list(update.snapshot.hashes)) == (True, [])


def test_logprobs_travel_with_their_bytes_and_alternatives():
    (message,) = codec.encode_chunks(
        2, "hi", [104, 105], logprobs=[(104, -0.5, [104, 7], [-0.5, -2.0])], token_bytes=token_bytes
    )
    assert (message.chunk.index, message.chunk.text, list(message.chunk.token_ids)) == (2, "hi", [104, 105])
    (entry,) = message.chunk.logprobs
    assert (entry.token_id, entry.logprob, entry.token_bytes) == (104, -0.5, b"h")
    assert [(a.token_id, a.logprob, a.token_bytes) for a in entry.top] == [(104, -0.5, b"h"), (7, -2.0, b"\x07")]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e30])
def test_a_logprob_that_is_no_number_for_json_becomes_the_floor(logprob):
    (message,) = codec.encode_chunks(0, "", [1], logprobs=[(1, logprob, [2], [logprob])], token_bytes=token_bytes)
    (entry,) = message.chunk.logprobs
    assert (entry.logprob, entry.top[0].logprob) == (-9999.0, -9999.0)


def test_logprobs_of_a_lagging_reader_are_split_but_text_and_ids_leave_together():
    ids = list(range(200)) * 45
    entries = [(i, -1.0, TOP_IDS, TOP_LOGPROBS) for i in ids]
    first, *rest = codec.encode_chunks(0, "text", ids, logprobs=entries, token_bytes=token_bytes)
    assert (first.chunk.text, list(first.chunk.token_ids)) == ("text", ids)
    assert all(not message.chunk.text and not message.chunk.token_ids for message in rest)
    assert [entry.token_id for message in (first, *rest) for entry in message.chunk.logprobs] == ids
    assert max(message.ByteSize() for message in (first, *rest)) < ONE_MEBIBYTE


def test_8_000_prompt_logprobs_are_split_into_messages_below_one_mebibyte():
    entries = [(i, -1.0, TOP_IDS, TOP_LOGPROBS) for i in range(8000)]
    messages = list(codec.encode_prompt_logprobs(0, entries, token_bytes=token_bytes))
    assert max(message.ByteSize() for message in messages) < ONE_MEBIBYTE
    assert [entry.token_id for message in messages for entry in message.chunk.prompt_logprobs] == list(range(8000))


@pytest.mark.parametrize("num_alternatives", [0, 1, 100])
def test_messages_of_logprobs_stay_small_however_many_alternatives_there_are(num_alternatives):
    top = (list(range(num_alternatives)), [-2.0] * num_alternatives)
    entries = [(i % 50_000, -1.0, *top) for i in range(3_000 if num_alternatives else 30_000)]
    messages = list(codec.encode_prompt_logprobs(0, entries, token_bytes=token_bytes))
    messages += codec.encode_chunks(0, "", [], logprobs=entries, token_bytes=token_bytes)
    assert max(message.ByteSize() for message in messages) < ONE_MEBIBYTE
    assert sum(len(message.chunk.prompt_logprobs) for message in messages) == len(entries)
    assert sum(len(message.chunk.logprobs) for message in messages) == len(entries)


def test_an_echoed_prompt_is_split_into_messages_below_one_mebibyte():
    messages = list(codec.encode_prompt_echo(0, [2**32 - 1] * 300_000))
    assert max(message.ByteSize() for message in messages) < ONE_MEBIBYTE
    assert sum(len(message.chunk.prompt_token_ids) for message in messages) == 300_000


@pytest.mark.parametrize("reason", ["stop", "length", "cancelled", "error"])
def test_every_finish_reason_has_its_word_on_the_wire(reason):
    message = finished(reason=reason)
    name = inference_pb2.FinishReason.Name(message.finished.finish_reason)
    assert name == f"FINISH_REASON_{reason.upper()}"
    assert message.finished.WhichOneof("matched_stop") is None


def test_a_matched_stop_is_told_as_string_or_as_id_even_when_the_id_is_0():
    assert finished(matched_stop="\n").finished.stop_string == "\n"
    assert finished(matched_stop=0).finished.WhichOneof("matched_stop") == "stop_token_id"


def test_times_are_differences_and_a_moment_that_never_came_gives_zero():
    timings = finished(times=codec.RequestTimes(10.0, 12.0, 15.0, 21.0)).finished.timings
    assert (timings.queue_s, timings.prefill_s, timings.decode_s, timings.ttft_s) == (2.0, 3.0, 6.0, 5.0)
    timings = finished(times=codec.RequestTimes(10.0, 0.0, 0.0, 21.0)).finished.timings
    assert (timings.queue_s, timings.prefill_s, timings.decode_s, timings.ttft_s) == (0.0, 0.0, 0.0, 0.0)


TIMES = codec.RequestTimes(1.0, 2.0, 3.0, 4.0)


def finished(*, reason="stop", matched_stop=None, times=TIMES):
    usage = codec.UsageCounts(prompt_tokens=5, cached_tokens=4, completion_tokens=3)
    return codec.encode_finished(0, reason, matched_stop=matched_stop, usage=usage, times=times)


def test_a_tokenizer_document_is_cut_and_its_digest_comes_last():
    document = bytes(range(256)) * 5000
    chunks = list(codec.encode_tokenizer(document, "abc"))
    assert b"".join(chunk.content for chunk in chunks) == document
    assert [chunk.digest for chunk in chunks] == [""] * (len(chunks) - 1) + ["abc"]
    assert max(chunk.ByteSize() for chunk in chunks) < ONE_MEBIBYTE


def test_hello_and_model_tell_who_the_pod_is():
    hello = codec.encode_hello(IDENTITY).hello
    assert (hello.epoch, hello.pod_name, hello.pod_uid) == ("e1", "pod-0", "uid-0")
    assert (hello.block_size, hello.capacity_blocks, hello.max_num_seqs, hello.numerics_id) == (16, 64, 8, "f32")
    assert (hello.model_fingerprint, hello.tokenizer_fingerprint, hello.hash_root_digest) == ("aa", "bb", "cc")
    model = codec.encode_model(IDENTITY)
    assert (model.name, model.context_length, model.vocab_size, model.block_size) == ("tiny", 512, 300, 16)
    assert dict(model.features) == {"prefix_caching": "on"}
    assert list(model.eos_token_ids) == [2]


def test_a_load_record_keeps_every_field():
    fields = codec.LoadFields(9, 1, 2, 300, ["a", "b"], 40, 500.0, 0.02, 0.5, draining=True)
    load = codec.encode_load(fields)
    assert {name: getattr(load, name) for name in fields._fields if name != "accepted"} == {
        name: value for name, value in fields._asdict().items() if name != "accepted"
    }
    assert list(load.accepted) == ["a", "b"]
