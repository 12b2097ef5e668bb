"""How fast this pod computes, measured from its own steps. Owned by the engine thread; knows no clock."""

from __future__ import annotations

from headstart.core.step import StepPlan

_DECAY = 0.9
"""What a step's weight is multiplied by with each later one: the last ten steps decide."""

_TELLING_TOKENS = 256
"""Fewer prompt tokens in a step mostly show what a step costs besides them."""


class StepRates:
    """Exponentially weighted means. Both are 0.0 until a step has told.

    The prefill rate is a quotient of two decayed sums, tokens and seconds, so that a step with a handful of prompt
    tokens weighs no more than it should. Of a mixed step the usual time of a decode step is taken off first.
    """

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}
        """By the power of two that the rows of a step reach."""
        self.best_prefill_tokens_per_s = 0.0
        """Of the fastest step that was large enough to show it: no queue was ever worked off faster."""
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0

    def decode_step_s(self, num_rows: int) -> float:
        """Time of a decode step with so many rows, or with fewer if none had as many; 0.0 when none is known.

        A step of a hundred rows says nothing of a lone one: told of it, routers would take an idle pod for a slow one
        and send it nothing that could correct them.
        """
        known = [size for size in self._decode_s if size <= _size(num_rows)]
        return self._decode_s[max(known)] if known else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        return self._prefill_tokens / self._prefill_s if self._prefill_s > 0.0 else 0.0

    def observe(self, plan: StepPlan, duration_s: float) -> None:
        """Learn from one step. A row is taken for a decode when it computes one token besides its drafts."""
        total = plan.total_tokens
        if total == plan.num_rows + sum(map(len, plan.drafts.values())):
            self._observe_decode(plan.num_rows, duration_s)
            return
        drafts = plan.drafts
        prefill = sum(
            num_tokens
            for index, num_tokens in enumerate(plan.num_tokens)
            if num_tokens > 1 + len(drafts.get(index, ()))
        )
        share_s = duration_s * prefill / total
        if prefill < total:
            # Floored, or the noise of a step that is nearly all decodes would pass for a fast prefill.
            num_decodes = sum(count == 1 + len(drafts.get(row, ())) for row, count in enumerate(plan.num_tokens))
            share_s = max(duration_s - self.decode_step_s(num_decodes), 0.5 * share_s)
        if prefill >= _TELLING_TOKENS and share_s > 0.0:
            self.best_prefill_tokens_per_s = max(self.best_prefill_tokens_per_s, prefill / share_s)
        self._prefill_tokens = _DECAY * self._prefill_tokens + prefill
        self._prefill_s = _DECAY * self._prefill_s + share_s

    def _observe_decode(self, num_rows: int, duration_s: float) -> None:
        size = _size(num_rows)
        before_s = self._decode_s.get(size, duration_s)
        self._decode_s[size] = before_s + (1.0 - _DECAY) * (duration_s - before_s)


def _size(num_rows: int) -> int:
    return max(1, num_rows).bit_length() - 1
