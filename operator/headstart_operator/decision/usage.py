"""What requests of a pool have been like lately: how often they came, how much of them was cached, how much they wrote.

Decayed means; the last hundred requests decide. Owner: the routing.
"""

from __future__ import annotations

from dataclasses import dataclass

_DECAY = 0.99


@dataclass(slots=True)
class PoolUsage:
    """Sums over requests that ended, which begin as if one of 1,000 prompt tokens, half cached, had written 128; and
    over those that were placed: how many, the seconds between them, and those of the prefill they brought. What was
    `seen` has no such beginning.
    """

    prompt_tokens: float = 1000.0
    cached_tokens: float = 500.0
    output_tokens: float = 128.0
    requests: float = 1.0
    seen_prompt_tokens: float = 0.0
    seen_cached_tokens: float = 0.0
    arrivals: float = 0.0
    gaps_s: float = 0.0
    work_s: float = 0.0
    last_arrival_s: float | None = None

    @property
    def hit_ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def mean_output_tokens(self) -> float:
        return self.output_tokens / self.requests

    @property
    def arrivals_per_s(self) -> float:
        """To the whole pool; 0.0 until two have come."""
        return self.arrivals / self.gaps_s if self.gaps_s > 0.0 else 0.0

    @property
    def work_per_s(self) -> float:
        """Seconds of prefill that come in a second, to the whole pool."""
        return self.work_s / self.gaps_s if self.gaps_s > 0.0 else 0.0

    def arrive(self, now_s: float, work_s: float) -> None:
        """A request was placed that takes `work_s` of prefill."""
        if self.last_arrival_s is not None:
            self.arrivals = _DECAY * self.arrivals + 1.0
            self.gaps_s = _DECAY * self.gaps_s + now_s - self.last_arrival_s
            self.work_s = _DECAY * self.work_s + work_s
        self.last_arrival_s = now_s

    def observe(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """One request ended."""
        self.prompt_tokens = _DECAY * self.prompt_tokens + prompt_tokens
        self.cached_tokens = _DECAY * self.cached_tokens + cached_tokens
        self.seen_prompt_tokens = _DECAY * self.seen_prompt_tokens + prompt_tokens
        self.seen_cached_tokens = _DECAY * self.seen_cached_tokens + cached_tokens
        self.output_tokens = _DECAY * self.output_tokens + output_tokens
        self.requests = _DECAY * self.requests + 1.0
