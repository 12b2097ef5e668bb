"""What requests of a pool have been like lately: how much of their prompts was cached, how much they wrote.

Decayed means over requests that ended; the last hundred decide. Owner: the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass

_DECAY = 0.99


@dataclass(slots=True)
class PoolUsage:
    """Sums of tokens and requests. They begin as if one request of 1,000 prompt tokens, half cached, wrote 128."""

    prompt_tokens: float = 1000.0
    cached_tokens: float = 500.0
    output_tokens: float = 128.0
    requests: float = 1.0

    @property
    def hit_ratio(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def mean_output_tokens(self) -> float:
        return self.output_tokens / self.requests

    def observe(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """One request ended."""
        self.prompt_tokens = _DECAY * self.prompt_tokens + prompt_tokens
        self.cached_tokens = _DECAY * self.cached_tokens + cached_tokens
        self.output_tokens = _DECAY * self.output_tokens + output_tokens
        self.requests = _DECAY * self.requests + 1.0
