"""The engine with the real text machine over a small byte-level tokenizer."""

import asyncio
import random

import pytest
from headstart.core.step import Finish, FinishReason, RequestStats, StepUpdates
from headstart.engine.decoder import Decoder
from headstart.text.detokenizer import StreamDecoder
from headstart.text.tokenizer import load_directory
from service.engine.harness import read, spec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LENGTH = (Finish(FinishReason.LENGTH), RequestStats(10, 0, 0, 0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """One token a byte, and no merges."""
    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    library = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    library.save(str(folder / "tokenizer.json"))
    return load_directory(folder)


@pytest.fixture
def make_stream_decoder(tokenizer):
    return lambda request: StreamDecoder(
        tokenizer,
        stop_strings=request.stop_strings,
        include_stop=request.include_stop,
        min_tokens=request.min_tokens,
    )


def push_all(decoder, token_ids, *, size=1):
    chunks = []
    for start in range(0, len(token_ids), size):
        ending = {"r": LENGTH} if start + size >= len(token_ids) else {}
        chunks += decoder.push(StepUpdates(["r"], [token_ids[start : start + size]], finished=ending))
    return chunks


@pytest.mark.parametrize("seed", range(10))
def test_any_bytes_in_any_grouping_give_the_text_of_all_of_them(tokenizer, make_stream_decoder, seed):
    rng = random.Random(seed)
    token_ids = [rng.randrange(256) for _ in range(400)]
    decoder = Decoder(make_stream_decoder)
    decoder.start(spec())
    chunks = push_all(decoder, token_ids, size=1 + seed % 4)
    assert "".join(chunk.text for chunk in chunks) == tokenizer.decode(token_ids)
    assert [token for chunk in chunks for token in chunk.token_ids] == token_ids


def test_a_character_cut_off_by_the_end_keeps_its_tokens(tokenizer, make_stream_decoder):
    token_ids = tokenizer.encode("a🌶")[:-1]
    decoder = Decoder(make_stream_decoder)
    decoder.start(spec())
    chunks = push_all(decoder, token_ids)
    assert "".join(chunk.text for chunk in chunks) == "a\ufffd"
    assert [token for chunk in chunks for token in chunk.token_ids] == token_ids


def test_an_answer_resumed_where_its_text_was_held_back_is_the_same_answer(tokenizer, make_stream_decoder):
    token_ids = tokenizer.encode("The 🌶 is hot, the STOP is near")
    request = spec(stop_strings=("STOP",))
    for cut in range(1, len(token_ids)):
        decoder = Decoder(make_stream_decoder)
        decoder.start(request)
        sent = [chunk for token in token_ids[:cut] for chunk in decoder.push(StepUpdates(["r"], [[token]]))]
        delivered = [token for chunk in sent for token in chunk.token_ids]
        if sent and sent[-1].finish is not None:
            break
        again = Decoder(make_stream_decoder)
        again.start(spec(stop_strings=("STOP",), resume_token_ids=tuple(delivered)))
        sent += push_all(again, token_ids[len(delivered) :])
        assert "".join(chunk.text for chunk in sent) == "The 🌶 is hot, the "
        assert sent[-1].matched_stop_string == "STOP"


async def test_text_is_the_same_alone_together_and_preempted(start_engine, tokenizer, make_stream_decoder):
    requests = [spec(f"r{i}", prompt=range(i, i + 9), max_tokens=30, logprobs=0) for i in range(6)]
    alone = await start_engine(make_stream_decoder=make_stream_decoder)
    expected = [(await alone.run(request)).text for request in requests]
    tight = await start_engine(make_stream_decoder=make_stream_decoder, num_blocks=16, budget=16)
    streams = await tight.handle.submit_all(requests)
    results = await asyncio.gather(*(read(stream) for stream in streams))
    assert [result.text for result in results] == expected
    assert [tokenizer.decode(result.token_ids) for result in results] == expected
    assert tight.handle.stats.num_preemptions > 0
    for result in results:
        scored = [entry.token_id for chunk in result.chunks for entry in chunk.logprobs]
        assert scored == result.token_ids


async def test_min_tokens_hold_back_a_stop_string(start_engine, make_stream_decoder):
    engine = await start_engine(make_stream_decoder=make_stream_decoder)
    whole = await engine.run(spec("whole", max_tokens=20))
    stop = whole.text[2:4]
    early = await engine.run(spec("early", max_tokens=20, stop_strings=(stop,)))
    assert early.text == whole.text[: whole.text.index(stop)]
    late = await engine.run(spec("late", max_tokens=20, min_tokens=4, stop_strings=(stop,)))
    position = whole.text.find(stop, 4)
    assert late.text == (whole.text if position < 0 else whole.text[:position])
