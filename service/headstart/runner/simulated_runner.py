"""A runner without weights: the next token is a pure function of the ids before it.

For dry runs of a cluster, load tests and scheduler tests. A step takes `step_seconds + tokens * token_seconds`. The
token does not depend on sampling parameters, seeds, `min_tokens` or masks: these have no effect here. A token's
probability is 1, so logprobs are 0.0 for it and the floor for any other.

Does not know K/V, but checks plans as the model's runner does. Owner of the rows; called from the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from headstart.core.step import StepOutput, StepPlan, TokenLogprobs
from headstart.runner.batch import check_plan
from headstart.runner.logprobs import LOGPROB_FLOOR
from headstart.runner.rows import Row, Rows
from headstart.runner.runner import InFlight

_MASK = (1 << 64) - 1
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


class SimulatedRunner:
    """Tokens lie in `first_token_id .. vocab_size - 1`: put the special ids below. `sleep` gets seconds."""

    def __init__(
        self,
        *,
        vocab_size: int,
        first_token_id: int,
        block_size: int,
        step_seconds: float,
        token_seconds: float,
        sleep: Callable[[float], object],
    ) -> None:
        if not 0 <= first_token_id < vocab_size:
            raise ValueError(f"first_token_id must lie in [0, {vocab_size}), is {first_token_id}")
        self._first_token_id = first_token_id
        self._num_choices = vocab_size - first_token_id
        self._block_size = block_size
        self._step_seconds = step_seconds
        self._token_seconds = token_seconds
        self._sleep = sleep
        self._rows = Rows()
        self._chains: dict[str, tuple[int, int]] = {}
        """Of each row that has sampled: how many of its tokens are hashed, and their hash."""

    def submit(self, plan: StepPlan) -> InFlight:
        """Run the whole step; what goes wrong is raised by `result()`."""
        done: Future[StepOutput] = Future()
        try:
            done.set_result(self._run(plan))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run(self, plan: StepPlan) -> StepOutput:
        rows = self._rows.apply(plan)
        for request_id in (*plan.finished, *(started.spec.request_id for started in plan.started)):
            self._chains.pop(request_id, None)
        output = StepOutput(sampled=[[] for _ in rows])
        if not rows:
            return output
        check_plan(plan, rows, self._rows, block_size=self._block_size)
        for index, row in enumerate(rows):
            if row.spec.prompt_logprobs is not None:
                self._score_prompt(plan, index, row, output)
            if plan.samples[index]:
                self._sample(index, row, plan.drafts.get(index, ()), output)
        seconds = self._step_seconds + plan.total_tokens * self._token_seconds
        if seconds > 0:
            self._sleep(seconds)
        return output

    def _sample(self, index: int, row: Row, drafts: Sequence[int], output: StepOutput) -> None:
        """Accept drafts while the function gives the same, then one more token."""
        known = self._rows.known(row)
        num_hashed, state = self._chains.get(row.spec.request_id, (0, _FNV_OFFSET))
        state = _extend(state, known[num_hashed:].tolist())
        self._chains[row.spec.request_id] = (len(known), state)
        tokens = [self._next_token(state)]
        for draft in drafts:
            if draft != tokens[-1]:
                break
            state = _extend(state, (draft,))
            tokens.append(self._next_token(state))
        self._rows.tokens.append(row.line, tokens)
        output.sampled[index] = tokens
        if row.spec.logprobs is not None:
            output.logprobs[index] = [_certain(token, token, row.spec.logprobs) for token in tokens]

    def _score_prompt(self, plan: StepPlan, index: int, row: Row, output: StepOutput) -> None:
        """Report the scheduled prompt positions that have a next prompt token."""
        prompt = row.spec.prompt_token_ids
        start = plan.starts[index]
        end = min(start + plan.num_tokens[index], len(prompt) - 1)
        state = _extend(_FNV_OFFSET, prompt[:start])
        scores = []
        for position in range(start, end):
            state = _extend(state, (prompt[position],))
            scores.append(_certain(self._next_token(state), prompt[position + 1], row.spec.prompt_logprobs or 0))
        if scores:
            output.prompt_logprobs[index] = scores

    def _next_token(self, state: int) -> int:
        """Spread the hash of a prefix over the token ids (the finalizer of MurmurHash3)."""
        state = ((state ^ (state >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
        state = ((state ^ (state >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
        return self._first_token_id + (state ^ (state >> 33)) % self._num_choices


def _extend(state: int, token_ids: Iterable[int]) -> int:
    """The hash of a prefix with `token_ids` behind it: FNV-1a over whole ids."""
    for token_id in token_ids:
        state = ((state ^ token_id) * _FNV_PRIME) & _MASK
    return state


def _certain(next_token_id: int, token_id: int, num_top: int) -> TokenLogprobs:
    """The score of `token_id` where `next_token_id` is the only token that can follow."""
    top_ids = [next_token_id] if num_top else []
    logprob = 0.0 if token_id == next_token_id else LOGPROB_FLOOR
    return TokenLogprobs(token_id, logprob, top_ids, [0.0] * len(top_ids))
