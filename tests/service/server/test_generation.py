"""Ends that a whole pod reaches only by accident of timing."""

import pytest
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, FinishReason, RequestStats
from headstart.engine.messages import CANCELLED, DEADLINE_PASSED
from headstart.engine.stream import RequestStream
from headstart.errors import DeadlineExceededError, InternalError, UnavailableError
from headstart.server.generation import Generation

STATS = RequestStats(5, 4, 1, 10.0, 11.0, 13.0)
DONE = Finish(FinishReason.STOP, matched_stop=7)


class Recorder:
    def __init__(self):
        self.messages = []

    @property
    def ends(self):
        return [(m.finished.index, m.finished.finish_reason) for m in self.messages if m.HasField("finished")]


def stream(*chunks, error=None):
    stream = RequestStream("r", lambda _: None)
    for chunk in chunks:
        stream.push(chunk)
    if error is not None:
        stream.fail(error)
    return stream


def chunk(text="", token_ids=(), **fields):
    return Chunk("r", text, list(token_ids), **fields)


async def relay(*streams, **fields):
    specs = [GenerateSpec(request_id=f"r{i}", prompt_token_ids=(1,) * 5, max_tokens=9) for i in range(len(streams))]
    context = Recorder()
    generation = Generation(specs, token_bytes=lambda _: b"", clock=lambda: 20.0, **fields)
    try:
        async for message in generation.messages(streams):
            context.messages.append(message)
    except Exception as error:
        return context, generation, error
    return context, generation, None


async def test_a_good_end_says_usage_times_and_what_stopped_it():
    context, generation, error = await relay(stream(chunk("ab", [97, 98], finish=DONE, stats=STATS)))
    assert error is None
    text, end = context.messages
    assert (text.chunk.text, list(text.chunk.token_ids)) == ("ab", [97, 98])
    finished = end.finished
    assert finished.stop_token_id == 7
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens, finished.usage.completion_tokens) == (5, 4, 2)
    times = finished.timings
    assert (times.queue_s, times.prefill_s, times.decode_s, times.ttft_s) == (1.0, 2.0, 7.0, 3.0)
    assert times.num_preemptions == 1
    assert [(end.reason, end.stats, end.completion_tokens) for end in generation.ends] == [("stop", STATS, 2)]


async def test_an_end_without_new_text_is_one_message():
    context, _, _ = await relay(stream(chunk(finish=DONE, stats=STATS)))
    assert len(context.messages) == 1


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        (DEADLINE_PASSED, DeadlineExceededError),
        (CANCELLED, UnavailableError),
        (Finish(FinishReason.ERROR, error="non-finite logits"), InternalError),
    ],
)
async def test_a_bad_end_of_one_choice_gives_the_status_after_every_choice_has_ended(finish, status):
    context, _, error = await relay(
        stream(chunk(finish=finish, stats=STATS)), stream(chunk("a", [97], finish=DONE, stats=STATS))
    )
    assert type(error) is status
    assert sorted(index for index, _ in context.ends) == [0, 1]


async def test_a_broken_engine_still_gives_each_choice_that_ran_one_end_with_what_it_sent():
    gone = UnavailableError("the engine broke")
    context, _, error = await relay(
        stream(chunk("abc", [1, 2, 3]), error=gone),
        stream(chunk("a", [97], finish=DONE, stats=STATS)),
        stream(error=gone),
    )
    assert error is gone
    assert sorted(index for index, _ in context.ends) == [0, 1, 2]
    counts = {m.finished.index: m.finished.usage.completion_tokens for m in context.messages if m.HasField("finished")}
    sent = dict.fromkeys(range(3), 0)
    for message in context.messages:
        sent[message.chunk.index] += len(message.chunk.token_ids)
    assert counts == sent


async def test_the_echo_comes_before_everything_else_and_once():
    context, _, _ = await relay(
        stream(chunk("a", [97]), chunk("b", [98], finish=DONE, stats=STATS)), echoes_prompt=True
    )
    assert [list(m.chunk.prompt_token_ids) for m in context.messages] == [[1] * 5, [], []]
