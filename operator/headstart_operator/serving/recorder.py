"""What the operator tells of a request when it is over: its span's attributes and the same metrics as a pod's.

Its times are those of the client: they hold the wait for a pod and every try. The words of a request are recorded only
when they are to be captured. Holds no state but instruments and what belongs to one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.content import finish_reason
from headstart.edge.hop import Hop, HopCall
from headstart.edge.operation import operation_of
from headstart.telemetry.requests import RequestInstruments, RequestRecord, cut_reason, error_type
from opentelemetry.util.types import AttributeValue

from headstart_operator.serving.delivery import is_finished


class RouteRecorder:
    """`clock` is monotonic seconds."""

    def __init__(
        self,
        instruments: RequestInstruments,
        *,
        captures_content: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._instruments = instruments
        self._captures_content = captures_content

    def call(self, request: pb.GenerateRequest, *, deadline_s: float | None, hop: Hop | None = None) -> RouteRecord:
        """A call has arrived, now. Enter it, and leave it when the call is over, well or not.

        Without a `hop` it is the only one of the span that is current.
        """
        hop = hop or Hop()
        return RouteRecord(self, request, deadline_s, hop, hop.begin(request, captures_content=self._captures_content))

    def record(self, ended: RequestRecord) -> None:
        """A call is over."""
        self._instruments.record(ended)


class RouteRecord:
    """One call. `model` is set once it is known: the name that pods serve, never the caller's words.

    `num_prompt_tokens` is set with it.
    """

    def __init__(
        self,
        recorder: RouteRecorder,
        request: pb.GenerateRequest,
        deadline_s: float | None,
        hop: Hop,
        part: HopCall,
    ) -> None:
        self.model = ""
        self.num_prompt_tokens = 0
        self._recorder = recorder
        self.operation = operation_of(request)
        self._num_choices = max(1, request.n)
        self._arrival_s = recorder.clock()
        self._deadline_s = deadline_s
        self._hop = hop
        self._part = part
        self._ttft_s: float | None = None
        self._ends: dict[int, pb.Finished] = {}
        self._route: Callable[[], Mapping[str, AttributeValue]] = dict
        self._unfinished: Callable[[], Iterable[pb.Finished]] = self._untouched

    def follow(
        self, *, route: Callable[[], Mapping[str, AttributeValue]], unfinished: Callable[[], Iterable[pb.Finished]]
    ) -> None:
        """The request has a pod. At its end `route` gives the span's attributes of the way that it took.

        `unfinished` gives an end for each choice that has none, with what the client got of it.
        """
        self._route, self._unfinished = route, unfinished

    def take(self, raw: bytes) -> None:
        """A message goes to the client."""
        if self._ttft_s is None:
            self._ttft_s = self._recorder.clock() - self._arrival_s
        if self._part.content is not None:
            self._part.content.add(pb.GenerateResponse.FromString(raw))
        if is_finished(raw):
            finished = pb.GenerateResponse.FromString(raw).finished
            self._ends[finished.index] = finished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        reason = cut_reason(error)
        if self.model and reason:
            self._end_unfinished(reason)
        ended = self._ended(error)
        self._recorder.record(ended)
        self._hop.tell(self._part, {**ended.attributes(), **self._route()})

    def _end_unfinished(self, reason: str) -> None:
        for finished in self._unfinished():
            finished.MergeFrom(pb.Finished(finish_reason=f"FINISH_REASON_{reason.upper()}"))
            self._ends.setdefault(finished.index, finished)

    def _untouched(self) -> Iterator[pb.Finished]:
        usage = pb.Usage(prompt_tokens=self.num_prompt_tokens)
        for index in range(self._num_choices):
            yield pb.Finished(index=index, usage=usage)

    def _ended(self, error: BaseException | None) -> RequestRecord:
        end_s = self._recorder.clock()
        usages = [end.usage for end in self._ends.values()]
        return RequestRecord(
            operation=self.operation,
            model=self.model,
            input_tokens=max((usage.prompt_tokens for usage in usages), default=0),
            cached_tokens=max((usage.cached_tokens for usage in usages), default=0),
            output_tokens=sum(usage.completion_tokens for usage in usages),
            finish_reasons=tuple(finish_reason(end) for end in self._ends.values()),
            duration_s=end_s - self._arrival_s,
            ttft_s=self._ttft_s,
            error_type=error_type(error, has_expired=self._deadline_s is not None and end_s >= self._deadline_s),
        )
