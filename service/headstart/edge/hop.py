"""What the calls behind one span tell of themselves, together: a completion of several prompts is a call for each.

Knows nothing of what a call is. Owner of its state: the handler whose span it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.content import CapturedContent, captured_attributes

_SUMS = frozenset(
    {
        "gen_ai.request.choice.count",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "headstart.preemptions",
        "headstart.route.attempts",
        "headstart.route.matched_blocks",
        "headstart.route.predicted_cached_tokens",
    }
)
_REASONS = "gen_ai.response.finish_reasons"
_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"


@dataclass(slots=True)
class HopCall:
    """One call. `content` is None unless its words are wanted: then it is to be given each message."""

    content: CapturedContent | None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


class Hop:
    """The span that is current when this is made, and the calls that work for it."""

    def __init__(self) -> None:
        self.span = trace.get_current_span()
        self._calls: list[HopCall] = []

    def begin(self, request: pb.GenerateRequest, *, captures_content: bool) -> HopCall:
        """A call has arrived. Its words are kept if they are to be captured and the span goes anywhere."""
        is_wanted = captures_content and self.span.is_recording()
        call = HopCall(CapturedContent(request) if is_wanted else None)
        self._calls.append(call)
        return call

    def tell(self, call: HopCall, attributes: Mapping[str, AttributeValue]) -> None:
        """A call is over: the span now says what all calls so far come to."""
        call.attributes = attributes
        if not self.span.is_recording():
            return
        self.span.set_attributes(_together([call.attributes for call in self._calls]))
        contents = [call.content for call in self._calls if call.content is not None]
        self.span.set_attributes(captured_attributes(contents))


def _together(calls: Sequence[Mapping[str, AttributeValue]]) -> dict[str, AttributeValue]:
    """Sums of counts, every end, the earliest first token; of the rest what the first call says that says it."""
    together: dict[str, AttributeValue] = {}
    for attributes in calls:
        for name, value in attributes.items():
            together[name] = _joined(name, together[name], value) if name in together else value
    return together


def _joined(name: str, before: AttributeValue, value: AttributeValue) -> AttributeValue:
    if name in _SUMS and isinstance(before, int) and isinstance(value, int):
        return before + value
    if name == _REASONS and isinstance(before, tuple) and isinstance(value, tuple):
        return before + value
    if name == _FIRST_CHUNK and isinstance(before, float) and isinstance(value, float):
        return min(before, value)
    return before
