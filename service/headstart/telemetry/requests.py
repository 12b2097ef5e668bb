"""What is told of a request at its end: the metrics and span attributes of OpenTelemetry's GenAI conventions.

Both come from one record, so that they agree. No prompt and no output is in it. Holds no state but instruments.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.metrics import Meter
from opentelemetry.util.types import AttributeValue

from headstart.errors import DeadlineExceededError, HeadstartError

PROVIDER = "headstart"

_FINISH_REASONS = ("stop", "length", "cancelled", "error")

# The buckets are the conventions'.
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, all its choices together, at its end.

    `operation` is `chat` or `text_completion`; `model` the served name, never the caller's words. `duration_s` counts
    from arrival to end, `ttft_s` to the first token, None when there was none. `finish_reasons` by choice.
    `error_type` is a status name, "" for a good end.
    """

    operation: str
    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    duration_s: float
    ttft_s: float | None
    error_type: str = ""

    def attributes(self) -> dict[str, AttributeValue]:
        """For the request's span."""
        attributes: dict[str, AttributeValue] = {
            **self.labels(),
            "gen_ai.response.model": self.model,
            "gen_ai.response.finish_reasons": self.finish_reasons,
            "gen_ai.usage.input_tokens": self.input_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.cached_tokens,
        }
        if self.ttft_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = self.ttft_s
        return attributes

    def labels(self) -> dict[str, str]:
        """For the metrics: a closed set."""
        labels = {
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self.model,
        }
        return labels | {"error.type": self.error_type} if self.error_type else labels


def error_type(error: BaseException | None, *, has_expired: bool) -> str:
    """A status name, "" for none. A call that was closed from outside was cancelled, or its deadline has passed."""
    if error is None:
        return ""
    if isinstance(error, HeadstartError):
        return error.status
    if isinstance(error, Exception):
        return "INTERNAL"
    return "DEADLINE_EXCEEDED" if has_expired else "CANCELLED"


def cut_reason(error: BaseException | None) -> str:
    """How choices of a request ended that have no end of their own, by what ended the call: cancelled or error.

    "" for those that were refused: they were never begun.
    """
    if error is None or isinstance(error, HeadstartError):
        return "cancelled" if error is not None and error.status == DeadlineExceededError.status else ""
    return "error" if isinstance(error, Exception) else "cancelled"


class RequestInstruments:
    """`gen_ai.server.*`: how long requests took, to the end, to the first token and per token after it, in seconds.

    Beside them, what they were made of: `headstart_prompt_tokens`, `_generated_tokens` and `_finished_choices`.
    """

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            unit="s",
            description="Time from a request's arrival to its end.",
            explicit_bucket_boundaries_advisory=_DURATION_S,
        )
        self._first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            unit="s",
            description="Time from a request's arrival to its first token.",
            explicit_bucket_boundaries_advisory=_FIRST_TOKEN_S,
        )
        self._per_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token",
            unit="s",
            description="Time per token after the first one.",
            explicit_bucket_boundaries_advisory=_PER_TOKEN_S,
        )
        self._prompt_tokens = meter.create_counter(
            "headstart_prompt_tokens", description="Prompt tokens of requests that ended, cached ones too."
        )
        self._generated_tokens = meter.create_counter(
            "headstart_generated_tokens", description="Tokens that requests had made when they ended."
        )
        self._finished = meter.create_counter(
            "headstart_finished_choices", description="Choices that ended, by reason."
        )
        # There from the start, so that the first one counts as an increase.
        self._prompt_tokens.add(0)
        self._generated_tokens.add(0)
        for reason in _FINISH_REASONS:
            self._finished.add(0, {"finished_reason": reason})

    def record(self, ended: RequestRecord) -> None:
        """Count a request that has ended. The two times of tokens are those of requests that ended well."""
        labels = ended.labels()
        self._duration.record(ended.duration_s, labels)
        self._prompt_tokens.add(ended.input_tokens)
        self._generated_tokens.add(ended.output_tokens)
        for reason in ended.finish_reasons:
            self._finished.add(1, {"finished_reason": reason})
        if ended.error_type or ended.ttft_s is None:
            return
        self._first_token.record(ended.ttft_s, labels)
        num_choices = max(1, len(ended.finish_reasons))
        num_later = ended.output_tokens / num_choices - 1
        if num_later > 0:
            self._per_token.record((ended.duration_s - ended.ttft_s) / num_later, labels)
