"""What a pod tells of a request when it is over: its span's attributes, three spans below it, and the metrics.

The spans `queue`, `prefill` and `decode` are made afterwards, from the times that the engine noted: nothing is traced
while a request runs. No prompt and no output is recorded, unless content is to be captured. Holds no state but
instruments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry import context, trace
from opentelemetry.trace import Span, Tracer
from opentelemetry.util.types import AttributeValue

from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.request import GenerateSpec
from headstart.core.step import RequestStats
from headstart.edge.content import CapturedContent
from headstart.edge.hop import Hop, HopCall
from headstart.edge.operation import operation_of
from headstart.server.generation import ChoiceEnd
from headstart.telemetry.requests import RequestInstruments, RequestRecord, error_type

_MAX_ATTRIBUTE = (1 << 63) - 1


@dataclass(slots=True)
class CallRecord:
    """One call from its arrival on; whoever runs it fills it in. Times are on the monotonic clock."""

    request: pb.GenerateRequest
    arrival_s: float
    deadline_s: float | None
    hop: Hop
    part: HopCall
    """This call's share of the hop."""
    operation: str
    specs: Sequence[GenerateSpec] = ()
    ends: Sequence[ChoiceEnd] = ()
    error: BaseException | None = None

    @property
    def content(self) -> CapturedContent | None:
        """None unless the words are wanted: then it is to be given each message."""
        return self.part.content


class RequestRecorder:
    """`model` is the served name: what callers write would be an open set of labels. `clock` is monotonic seconds."""

    def __init__(
        self,
        tracer: Tracer,
        instruments: RequestInstruments,
        *,
        model: str,
        captures_content: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._tracer = tracer
        self._instruments = instruments
        self._model = model
        self._captures_content = captures_content

    def begin(
        self, request: pb.GenerateRequest, *, deadline_s: float | None, hop: Hop | None = None, operation: str = ""
    ) -> CallRecord:
        """A call has arrived, now. Without a `hop` it is the only one of the span that is current.

        `operation` is what the request was where its prompt still had its form, "" when nobody says.
        """
        hop = hop or Hop()
        return CallRecord(
            request,
            arrival_s=self.clock(),
            deadline_s=deadline_s,
            hop=hop,
            part=hop.begin(request, captures_content=self._captures_content),
            operation=operation or operation_of(request),
        )

    def record(self, call: CallRecord, *, end_s: float) -> None:
        """The call is over, well or not, since `end_s`."""
        ended = self._ended(call, end_s)
        self._instruments.record(ended)
        span = call.hop.span
        if not span.is_recording():
            return
        call.hop.tell(call.part, {**ended.attributes(), **_request_attributes(call)})
        for end in call.ends:
            if end.stats is not None:
                self._add_phases(span, end.stats, end_s)

    def _ended(self, call: CallRecord, end_s: float) -> RequestRecord:
        all_stats = [end.stats for end in call.ends if end.stats is not None]
        first_token_s = min((stats.first_token_s for stats in all_stats if stats.first_token_s > 0.0), default=None)
        return RequestRecord(
            operation=call.operation,
            model=self._model,
            input_tokens=len(call.specs[0].prompt_token_ids) if call.specs else 0,
            cached_tokens=max((stats.cached_tokens for stats in all_stats), default=0),
            output_tokens=sum(end.completion_tokens for end in call.ends),
            finish_reasons=tuple(end.reason.value for end in call.ends),
            duration_s=end_s - call.arrival_s,
            ttft_s=None if first_token_s is None else first_token_s - call.arrival_s,
            error_type=error_type(call.error, has_expired=call.deadline_s is not None and end_s >= call.deadline_s),
        )

    def _add_phases(self, span: Span, stats: RequestStats, end_s: float) -> None:
        """A phase that was not reached has no span; one that was not left ends with the request."""
        parent = trace.set_span_in_context(span, context.Context())
        edges = (stats.arrival_s, stats.admitted_s, stats.first_token_s)
        to_wall_ns = time.time_ns() - round(end_s * 1e9)
        for index, name in enumerate(("queue", "prefill", "decode")):
            start_s = edges[index]
            if start_s <= 0.0:
                continue
            stop_s = next((edge for edge in edges[index + 1 :] if edge > 0.0), end_s)
            phase = self._tracer.start_span(name, context=parent, start_time=to_wall_ns + round(start_s * 1e9))
            if name == "prefill":
                phase.set_attribute("gen_ai.usage.cache_read.input_tokens", stats.cached_tokens)
            phase.end(end_time=to_wall_ns + round(stop_s * 1e9))


def _request_attributes(call: CallRecord) -> dict[str, AttributeValue]:
    """What was asked for, as far as it was said, and the preemptions that it met."""
    request, sampling = call.request, call.request.sampling
    attributes: dict[str, AttributeValue] = {
        "headstart.preemptions": sum(end.stats.num_preemptions for end in call.ends if end.stats is not None)
    }
    if call.specs:
        attributes["gen_ai.response.id"] = call.specs[0].request_id
        attributes["gen_ai.request.choice.count"] = len(call.specs)
        if sampling.HasField("seed") and sampling.seed <= _MAX_ATTRIBUTE:
            attributes["gen_ai.request.seed"] = sampling.seed
    if request.HasField("max_tokens"):
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
        if sampling.HasField(name):
            attributes[f"gen_ai.request.{name}"] = getattr(sampling, name)
    return attributes
