"""What a step's output means for its requests: which token is the last, whom a fault takes along, the next drafts."""

from __future__ import annotations

from headstart.cache.manager import BlockManager
from headstart.core.request import RequestState, RequestStatus
from headstart.core.step import Finish, FinishReason, RequestStats


def find_finish(
    request: RequestState, sampled: list[int], eos_token_ids: frozenset[int]
) -> tuple[Finish | None, list[int]]:
    """Whether one of the tokens just appended ends the request, and the tokens up to that one.

    The order is eos, stop ids, length. `min_tokens` holds back all but length.
    """
    spec = request.spec
    num_known = len(request.tokens) - len(sampled)
    for count, token in enumerate(sampled, 1):
        num_output = num_known + count - request.num_prompt
        if token in request.stop_ids and num_output >= spec.min_tokens:
            is_eos = token in eos_token_ids and not spec.ignore_eos
            return Finish(FinishReason.STOP, None if is_eos else token), sampled[:count]
        if num_known + count >= request.max_known:
            return Finish(FinishReason.LENGTH), sampled[:count]
    return None, sampled


def stats_of(request: RequestState) -> RequestStats:
    """What is told about a request when it ends."""
    return RequestStats(
        prompt_tokens=request.num_prompt,
        cached_tokens=request.cached_tokens,
        num_preemptions=request.num_preemptions,
        arrival_s=request.arrival_s,
        admitted_s=request.admitted_s,
        first_token_s=request.first_token_s,
    )


def heirs_of(manager: BlockManager, requests: list[RequestState], poisoned: frozenset[int]) -> set[int]:
    """Rows that hit a block which a poisoned row registered in this step.

    One pass finds the heirs of heirs too: a chain that holds an heir's block holds the blocks before it.
    """
    suspect = {block for row in poisoned for block in manager.pending_blocks(requests[row].table)}
    return {row for row, request in enumerate(requests) if not suspect.isdisjoint(request.table.block_ids)} - poisoned


def take_drafts(requests: list[RequestState], drafts: dict[int, list[int]]) -> None:
    """Replace the drafts of a step's rows. No more than its length leaves room for: one token is always sampled."""
    for row, request in enumerate(requests):
        is_running = request.status is RequestStatus.RUNNING
        room = max(0, request.max_known - len(request.tokens) - 1) if is_running else 0
        request.drafts = drafts.get(row, [])[:room]
