"""Merging for a slow reader, and the ways in which a stream ends."""

import asyncio

import pytest
from headstart.core.step import Chunk, Finish, FinishReason, RequestStats, TokenLogprobs
from headstart.engine.stream import RequestStream
from headstart.errors import UnavailableError
from service.engine.harness import read

STOP = Finish(FinishReason.STOP)
STATS = RequestStats(1, 0, 0, 0.0, 0.0, 0.0)


def piece(number, **fields):
    logprobs = [TokenLogprobs(number, -1.0, [], [])]
    return Chunk("r", f"{number} ", [number], logprobs, [TokenLogprobs(100 + number, -2.0, [], [])], **fields)


@pytest.fixture
def cancelled():
    return []


@pytest.fixture
async def stream(cancelled):
    return RequestStream("r", cancelled.append)


async def test_a_reader_that_keeps_up_gets_every_chunk(stream):
    stream.push(piece(1))
    assert (await anext(stream)).token_ids == [1]
    stream.push(piece(2, finish=STOP, stats=STATS))
    last = await anext(stream)
    assert (last.text, last.finish, last.stats) == ("2 ", STOP, STATS)
    assert (await read(stream)).chunks == []


async def test_what_a_reader_missed_comes_out_as_one_chunk_in_order(stream):
    for number in range(50):
        stream.push(piece(number))
    stream.push(piece(50, finish=STOP, matched_stop_string="x", stats=STATS))
    (chunk,) = (await read(stream)).chunks
    assert chunk.token_ids == list(range(51))
    assert chunk.text == "".join(f"{number} " for number in range(51))
    assert [entry.token_id for entry in chunk.logprobs] == chunk.token_ids
    assert [entry.token_id for entry in chunk.prompt_logprobs] == list(range(100, 151))
    assert (chunk.finish, chunk.matched_stop_string, chunk.stats) == (STOP, "x", STATS)


async def test_merging_changes_no_chunk_that_was_published(stream):
    first = piece(1)
    stream.push(first)
    stream.push(piece(2))
    assert first.token_ids == [1]
    taken = await anext(stream)
    stream.push(piece(3))
    assert taken.token_ids == [1, 2]


async def test_an_error_comes_after_what_was_buffered(stream):
    stream.push(piece(1))
    stream.fail(UnavailableError("gone"))
    result = await read(stream)
    assert [chunk.token_ids for chunk in result.chunks] == [[1]]
    assert isinstance(result.error, UnavailableError)
    assert (await read(stream)).error is None


async def test_closing_early_cancels_once_and_ends_a_pending_read(stream, cancelled):
    reading = asyncio.ensure_future(read(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    await stream.aclose()
    assert (await reading).chunks == []
    assert cancelled == ["r"]
    stream.push(piece(1))
    assert (await read(stream)).chunks == []


async def test_closing_after_the_end_cancels_nothing(stream, cancelled):
    stream.push(piece(1, finish=STOP))
    await read(stream)
    await stream.aclose()
    assert cancelled == []
