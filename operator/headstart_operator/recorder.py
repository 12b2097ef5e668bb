"""What the operator tells of a request when it is over: its span's attributes and the same metrics as a pod's.

Its times are those of the client: they hold the wait for a pod and every try. The words of a request are recorded only
when they are to be captured. Holds no state but instruments and what belongs to one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.content import CapturedContent, finish_reason
from headstart.telemetry.requests import RequestInstruments, RequestRecord, error_type
from opentelemetry import trace

from headstart_operator.delivery import is_finished


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

    def call(self, request: pb.GenerateRequest, *, deadline_s: float | None) -> RouteRecord:
        """A call has arrived, now. Enter it, and leave it when the call is over, well or not."""
        is_captured = self._captures_content and trace.get_current_span().is_recording()
        return RouteRecord(self, request, deadline_s, CapturedContent(request) if is_captured else None)

    def record(self, ended: RequestRecord) -> None:
        """A call is over."""
        self._instruments.record(ended)


class RouteRecord:
    """One call. `model` is set once it is known: the name that pods serve, never the caller's words."""

    def __init__(
        self,
        recorder: RouteRecorder,
        request: pb.GenerateRequest,
        deadline_s: float | None,
        content: CapturedContent | None,
    ) -> None:
        self.model = ""
        self._recorder = recorder
        self._operation = "chat" if request.WhichOneof("prompt") == "chat" else "text_completion"
        self._arrival_s = recorder.clock()
        self._deadline_s = deadline_s
        self._content = content
        self._span = trace.get_current_span()
        self._ttft_s: float | None = None
        self._ends: list[pb.Finished] = []

    def take(self, raw: bytes) -> None:
        """A message goes to the client."""
        if self._ttft_s is None:
            self._ttft_s = self._recorder.clock() - self._arrival_s
        if self._content is not None:
            self._content.add(pb.GenerateResponse.FromString(raw))
        if is_finished(raw):
            self._ends.append(pb.GenerateResponse.FromString(raw).finished)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ended = self._ended(error)
        self._recorder.record(ended)
        self._span.set_attributes(ended.attributes())
        if self._content is not None:
            self._span.set_attributes(self._content.attributes())

    def _ended(self, error: BaseException | None) -> RequestRecord:
        end_s = self._recorder.clock()
        usages = [end.usage for end in self._ends]
        return RequestRecord(
            operation=self._operation,
            model=self.model,
            input_tokens=max((usage.prompt_tokens for usage in usages), default=0),
            cached_tokens=max((usage.cached_tokens for usage in usages), default=0),
            output_tokens=sum(usage.completion_tokens for usage in usages),
            finish_reasons=tuple(finish_reason(end) for end in self._ends),
            duration_s=end_s - self._arrival_s,
            ttft_s=self._ttft_s,
            error_type=error_type(error, has_expired=self._deadline_s is not None and end_s >= self._deadline_s),
        )
