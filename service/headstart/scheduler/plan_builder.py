"""The step plan while it is being made: rows can still be added and taken out. Owner: one call of `schedule()`."""

from __future__ import annotations

from headstart.core.request import RequestState
from headstart.core.step import StartedRow, StepPlan


class PlanBuilder:
    """Columns of the rows planned so far, the token budget that is left, and the `share` of a running prompt."""

    def __init__(self, budget: int, *, share: int) -> None:
        self.budget = budget
        self.share = share
        self.num_partial = 0
        self.requests: list[RequestState] = []
        self.starts: list[int] = []
        self.num_tokens: list[int] = []
        self.new_block_ids: list[list[int]] = []
        self.samples: list[bool] = []
        self.started: list[StartedRow] = []
        self._read_only: list[RequestState] = []
        self.preempted_rank: int | None = None
        """The best rank among the requests preempted for this plan; None when there was none."""

    def add(self, request: RequestState, num_tokens: int, new_block_ids: list[int]) -> None:
        """Plan `num_tokens` of a request from where it stands."""
        start = request.num_computed
        is_sampling = start + num_tokens >= len(request.tokens)
        self.requests.append(request)
        self.starts.append(start)
        self.num_tokens.append(num_tokens)
        self.new_block_ids.append(new_block_ids)
        self.samples.append(is_sampling)
        self.budget -= num_tokens
        if not is_sampling:
            self.num_partial += 1

    def add_reserved(self, request: RequestState, num_tokens: int, new_block_ids: list[int]) -> None:
        """The same for a row whose block table has just grown."""
        request.edge = request.table.edge
        if request.num_computed < request.table.shared_end:
            self._read_only.append(request)
        self.add(request, num_tokens, new_block_ids)

    def planned(self, request: RequestState) -> tuple[int, bool]:
        """Tokens of a request that are in the plan, and whether they leave its prompt unfinished."""
        if request not in self.requests:
            return 0, False
        row = self.requests.index(request)
        return self.num_tokens[row], not self.samples[row]

    def withdraw(self, request: RequestState) -> None:
        """Take a request's row out whole and refund its tokens, if it has one."""
        if request not in self.requests:
            return
        row = self.requests.index(request)
        self.budget += self.num_tokens[row]
        self.num_partial -= not self.samples[row]
        for column in (self.requests, self.starts, self.num_tokens, self.new_block_ids, self.samples):
            del column[row]

    def freeze(self, step: int, finished: list[str]) -> StepPlan:
        """The plan as the runner sees it."""
        requests = self.requests
        drafts = {
            row: request.drafts[: start + count - len(request.tokens)]
            for row, (request, start, count) in enumerate(zip(requests, self.starts, self.num_tokens, strict=True))
            if request.drafts and start + count > len(request.tokens)
        }
        return StepPlan(
            step=step,
            request_ids=[request.request_id for request in requests],
            starts=self.starts,
            num_tokens=self.num_tokens,
            new_block_ids=self.new_block_ids,
            samples=self.samples,
            drafts=drafts,
            read_only=frozenset(requests.index(request) for request in self._read_only if request in requests),
            started=self.started,
            finished=finished,
        )
