"""Back-pressure: how many requests and tokens may wait for their first admission. Owned by the handle."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.contract.request import GenerateSpec
from headstart.engine.messages import LoadRecord
from headstart.errors import InvalidRequestError, UnavailableError

_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 5.0


class QueueLimit:
    """Counts a request from `enter` until `leave`: its first row in a plan, or its end, whichever is first."""

    def __init__(self, *, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._waiting: dict[str, int] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def check(self, specs: Sequence[GenerateSpec], load: LoadRecord) -> None:
        """Raises UnavailableError, with a time to retry after, when these would be too many.

        An empty queue takes any one request: its size was judged elsewhere. More choices than it can ever hold are an
        InvalidRequestError, since no waiting would help.
        """
        if len(specs) > self._max_requests:
            raise InvalidRequestError("n", f"{len(specs)} choices; the queue of this pod holds {self._max_requests}")
        num_tokens = sum(map(_num_tokens, specs))
        is_full = len(self._waiting) + len(specs) > self._max_requests
        is_long = self._num_tokens + num_tokens > self._max_tokens
        if is_full or (is_long and self._waiting):
            raise UnavailableError(
                f"the queue of this pod is full ({len(self._waiting)} requests, {self._num_tokens} tokens)",
                retry_after_s=_retry_after_s(load),
            )

    def enter(self, spec: GenerateSpec) -> None:
        self._waiting[spec.request_id] = _num_tokens(spec)
        self._num_tokens += self._waiting[spec.request_id]

    def leave(self, request_id: str) -> None:
        """Idempotent."""
        self._num_tokens -= self._waiting.pop(request_id, 0)


def _num_tokens(spec: GenerateSpec) -> int:
    return len(spec.prompt_token_ids) + len(spec.resume_token_ids)


def _retry_after_s(load: LoadRecord) -> float:
    """When the prefills that are ahead should be done, within bounds."""
    rate = load.prefill_tokens_per_s
    return min(max(load.pending_prefill_tokens / rate, _MIN_RETRY_S), _MAX_RETRY_S) if rate else _MIN_RETRY_S
