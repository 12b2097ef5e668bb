"""What the router tells of a request: the client's times, what all tries together gave, and no words unless asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.errors import DeadlineExceededError, NotFoundError
from headstart.telemetry.requests import RequestInstruments
from headstart.telemetry.signals import Additions, Signals, open_signals
from headstart_operator.serving.recorder import RouteRecorder
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_SECRET = "the crow flies at midnight"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Told:
    """A recorder, and what it told."""

    def __init__(self, *, captures_content: bool = False) -> None:
        self.clock = Clock()
        self._spans = InMemorySpanExporter()
        self.signals: Signals = open_signals(
            service_name="r",
            instance_id="r-0",
            additions=Additions(span_processors=(SimpleSpanProcessor(self._spans),)),
            environ={},
        )
        self.recorder = RouteRecorder(
            RequestInstruments(self.signals.meter), captures_content=captures_content, clock=self.clock
        )

    def span(self) -> ReadableSpan:
        (span,) = self._spans.get_finished_spans()
        return span

    def sample(self, name: str) -> float:
        lines = self.signals.exposition().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.signals.shutdown(timeout_s=5)


def _run(
    told: Told, *, seconds: float = 3.0, error: BaseException | None = None, deadline_s: float | None = None
) -> None:
    request = pb.GenerateRequest(text=_SECRET, n=2)
    with told.signals.tracer.start_as_current_span("hop"), told.recorder.call(request, deadline_s=deadline_s) as record:
        told.clock.now_s += 1.0
        if error is not None:
            told.clock.now_s += seconds - 1.0
            raise error
        record.model = "tiny"
        for index in range(2):
            record.take(pb.GenerateResponse(chunk=pb.Chunk(index=index, text=f"caw {index}")).SerializeToString())
        told.clock.now_s += seconds - 1.0
        for index in range(2):
            usage = pb.Usage(prompt_tokens=10, cached_tokens=4 * index, completion_tokens=5)
            finished = pb.Finished(index=index, finish_reason=pb.FINISH_REASON_STOP, usage=usage)
            record.take(pb.GenerateResponse(finished=finished).SerializeToString())


def test_a_request_is_one_record_of_all_its_choices(told: Told) -> None:
    _run(told)
    said = told.span().attributes
    assert said is not None
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (10, 10)
    assert said["gen_ai.usage.cache_read.input_tokens"] == 4
    assert said["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert told.sample("gen_ai_server_request_duration_seconds_sum") == 3.0
    assert told.sample("gen_ai_server_time_to_first_token_seconds_sum") == 1.0
    assert told.sample("gen_ai_server_time_per_output_token_seconds_sum") == 2.0 / 4


@pytest.mark.parametrize(
    ("error", "deadline_s", "word"),
    [
        (NotFoundError("model: 'x' is not served here; served: 'y'"), None, "NOT_FOUND"),
        (GeneratorExit(), None, "CANCELLED"),
        (GeneratorExit(), 103.0, "DEADLINE_EXCEEDED"),
        (RuntimeError(_SECRET), None, "INTERNAL"),
    ],
)
def test_a_request_without_end_is_counted_by_what_ended_it(
    told: Told, error: BaseException, deadline_s: float | None, word: str
) -> None:
    with pytest.raises(type(error)):
        _run(told, error=error, deadline_s=deadline_s)
    assert told.sample(f'gen_ai_server_request_duration_seconds_count{{error_type="{word}"') == 1
    assert told.sample("gen_ai_server_time_to_first_token_seconds_count") == 0


@pytest.mark.parametrize(
    ("error", "reason", "num_counted"),
    [
        (GeneratorExit(), "cancelled", 2),
        (DeadlineExceededError("late"), "cancelled", 2),
        (RuntimeError("a fault"), "error", 2),
        (NotFoundError("refused"), "cancelled", 0),
    ],
)
def test_choices_without_end_are_counted_with_what_was_delivered_unless_they_were_refused(
    told: Told, error: BaseException, reason: str, num_counted: int
) -> None:
    ends = [pb.Finished(index=index, usage=pb.Usage(prompt_tokens=9, completion_tokens=3)) for index in range(2)]

    def break_off() -> None:
        hop = told.signals.tracer.start_as_current_span("hop")
        with hop, told.recorder.call(pb.GenerateRequest(n=2), deadline_s=None) as record:
            record.model = "tiny"
            record.follow(route=lambda: {"headstart.route.pod": "pod-0"}, unfinished=lambda: ends)
            raise error

    with pytest.raises(type(error)):
        break_off()
    said = told.span().attributes or {}
    assert said["headstart.route.pod"] == "pod-0"
    assert said["gen_ai.response.finish_reasons"] == (reason,) * num_counted
    assert said["gen_ai.usage.output_tokens"] == 3 * num_counted
    assert told.sample(f'headstart_finished_choices_total{{finished_reason="{reason}"}}') == num_counted


@pytest.mark.parametrize("captures_content", [False, True])
def test_words_are_in_the_span_only_when_they_are_captured(captures_content: bool) -> None:
    told = Told(captures_content=captures_content)
    _run(told)
    said = dict(told.span().attributes or {})
    assert _SECRET not in told.signals.exposition().decode()
    if captures_content:
        assert json.loads(str(said["gen_ai.input.messages"]))[0]["parts"][0]["content"] == _SECRET
        texts = [each["parts"][0]["content"] for each in json.loads(str(said["gen_ai.output.messages"]))]
        assert texts == ["caw 0", "caw 1"]
    else:
        assert not {"gen_ai.input.messages", "gen_ai.output.messages"} & said.keys()
    told.signals.shutdown(timeout_s=5)
