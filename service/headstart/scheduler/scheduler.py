"""Decides how far each request advances in a step: add, abort, schedule, commit (and reset).

Prefill, chunked prefill, decode, a prefix hit, resumption after a preemption and draft tokens are one question: how
many of the tokens that a request wants may be computed now. It knows token counts, blocks and order; nothing of models,
text or streams. Owner of every `RequestState`, of the waiting queue and, through the block manager, of all blocks. One
thread only: the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headstart.cache.manager import BlockManager
from headstart.contract.prefix import reads_cache
from headstart.contract.request import GenerateSpec
from headstart.core.request import PrefixMatch, RequestState, RequestStatus
from headstart.core.step import (
    Finish,
    FinishReason,
    RequestStats,
    StartedRow,
    StepOutput,
    StepPlan,
    StepUpdates,
)
from headstart.errors import AlreadyExistsError, FailedPreconditionError, InvalidRequestError
from headstart.scheduler.backlog import Backlog
from headstart.scheduler.gate import Gate
from headstart.scheduler.limits import SchedulerLimits, cut_at_edge
from headstart.scheduler.outcome import find_finish, heirs_of, stats_of, take_drafts
from headstart.scheduler.plan_builder import PlanBuilder
from headstart.scheduler.preemption import Shortfall, fewest_victims
from headstart.scheduler.running import RunningSet
from headstart.scheduler.stats import Counters, SchedulerStats, read_stats
from headstart.scheduler.waiting import WaitingQueue

_NO_BLOCKS: list[int] = []
_HEIR_OF_FAULT = "a request whose cached prefix it shared in this step failed"
_LOOK_PAST = 16
"""How many waiting requests a step looks at behind the first that it had to step over."""


class Scheduler:
    """Bounded by `limits`; `eos_token_ids` end a request that does not ignore them; `clock` is monotonic seconds."""

    def __init__(
        self,
        manager: BlockManager,
        limits: SchedulerLimits,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._limits = limits
        self._max_len = min(limits.max_len, manager.pool.num_blocks * manager.block_size)
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._requests: dict[str, RequestState] = {}
        self._waiting = WaitingQueue(by_priority=limits.policy == "priority")
        self._running = RunningSet()
        self._gate = Gate(manager, self._waiting, self._running, limits)
        self._backlog = Backlog(manager, self._waiting, self._running, limits)
        self._aged: list[RequestState] = []
        self._in_flight: list[RequestState] = []
        self._left_runner: list[str] = []
        self._has_drafts = False
        self._num_arrivals = 0
        self.counters = Counters()

    # -- the five verbs

    def add(self, spec: GenerateSpec) -> None:
        """Queue a request.

        Raises AlreadyExistsError for an id that is in use, InvalidRequestError for a request that can never fit.
        """
        num_known = len(spec.prompt_token_ids) + len(spec.resume_token_ids)
        if spec.request_id in self._requests:
            raise AlreadyExistsError(f"request_id: {spec.request_id!r} is still running")
        if num_known == 0:
            raise InvalidRequestError("prompt", "is empty")
        if num_known + 1 > self._max_len:
            raise InvalidRequestError(
                "prompt", f"has {num_known} tokens; with one generated token at most {self._max_len} fit this pod"
            )
        self._num_arrivals += 1
        request = RequestState(spec, max_len=self._max_len, eos_token_ids=self._eos_token_ids)
        request.arrival, request.arrival_s = self._num_arrivals, self._clock()
        self._requests[spec.request_id] = request
        self._wait(request)

    def abort(self, request_id: str) -> RequestStats | None:
        """End a request wherever it is, for whatever reason. Idempotent: None when there is no such request.

        While its step is in flight its blocks may still be written, so they are held until the commit.
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        is_in_flight = any(other is request for other in self._in_flight)
        self._end(request, holds_blocks=is_in_flight)
        return stats_of(request)

    def schedule(self) -> StepPlan:
        """The next step: running requests first (decodes, then partial prefills), then waiting ones."""
        counters = self.counters
        counters.steps += 1
        for request in self._aged:
            request.is_aged = False  # it had its step
        self._aged.clear()
        self._waiting.promote(step=counters.steps)

        plan = PlanBuilder(self._limits.max_num_batched_tokens, share=self._gate.share())
        for request in self._running.decodes_first():
            if plan.budget <= 0:
                break
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for one before it
            start = request.num_computed
            num_tokens = len(request.tokens) + len(request.drafts) - start
            if num_tokens > 1:
                num_tokens = self._chunk(request, start, plan)
            if start + num_tokens < request.edge:
                plan.add(request, num_tokens, _NO_BLOCKS)  # no block is needed, none is completed
            else:
                self._advance(request, plan)  # asks for its chunk again: a hit may move its start
        if plan.preempted_rank is None:
            self._admit(plan)

        self._in_flight = plan.requests
        finished, self._left_runner = self._left_runner, []
        return plan.freeze(counters.steps, finished)

    def commit(self, plan: StepPlan, output: StepOutput | None) -> StepUpdates:
        """Take in what the runner found for `plan`, which must be the last one scheduled.

        `output` is None when the forward pass failed as a whole: every request of the step ends with an error and what
        the step registered is undone.
        """
        requests, self._in_flight = self._in_flight, []
        finished: dict[str, tuple[Finish, RequestStats]] = {}
        if output is None:
            output = StepOutput([[] for _ in requests], faults=dict.fromkeys(range(len(requests)), "the step failed"))
            self._end_faulty(requests, output.faults, finished)
        elif output.poisoned:
            heirs = heirs_of(self._manager, requests, output.poisoned)
            suspects = {row: output.faults.get(row, _HEIR_OF_FAULT) for row in output.poisoned | heirs}
            self._end_faulty(requests, suspects, finished, forget=True)
        self._manager.seal()
        # What is left failed after its forward pass: what it cached is sound.
        self._end_faulty(requests, output.faults, finished)
        self.counters.contained_faults += bool(output.faults)
        self.counters.computed_tokens += plan.total_tokens
        new_tokens = output.sampled
        starts, counts = plan.starts, plan.num_tokens
        for row, (request, sampled) in enumerate(zip(requests, output.sampled, strict=True)):
            if request.status is not RequestStatus.RUNNING:  # ended by a fault above, or aborted in flight
                self._manager.release(request.table)
                kept: list[int] = []
            elif not sampled:
                request.num_computed = starts[row] + counts[row]
                continue
            else:
                tokens = request.tokens
                request.num_computed = len(tokens) + len(sampled) - 1
                tokens.extend(sampled)
                if request.is_prefilling:
                    self._running.end_prefill(request)
                    self._backlog.leave(request)
                    request.first_token_s = request.first_token_s or self._clock()
                if len(tokens) < request.max_known and request.stop_ids.isdisjoint(sampled):
                    continue
                finish, kept = find_finish(request, sampled, self._eos_token_ids)
                if finish is None:
                    continue
                self._end(request)
                finished[request.request_id] = (finish, stats_of(request))
            if new_tokens is output.sampled:
                new_tokens = output.sampled[:]
            new_tokens[row] = kept
        if self._has_drafts or output.drafts:
            take_drafts(requests, output.drafts)
            self._has_drafts = bool(output.drafts)
        ids = plan.request_ids
        return StepUpdates(
            request_ids=ids,
            new_tokens=new_tokens,
            finished=finished,
            logprobs={ids[row]: entries for row, entries in output.logprobs.items()},
            prompt_logprobs={ids[row]: entries for row, entries in output.prompt_logprobs.items()},
        )

    def reset(self, *, force: bool) -> int:
        """Forget all cached blocks and say how many there were.

        Raises FailedPreconditionError while blocks are in use; with `force` everything that runs is preempted instead,
        in order, and starts again.
        """
        pool = self._manager.pool
        if self._running and not force:
            in_use = pool.num_blocks - pool.num_free
            raise FailedPreconditionError(f"{in_use} blocks are in use by {len(self._running)} running requests")
        if self._in_flight:
            raise FailedPreconditionError("a step is in flight")
        for request in list(self._running):
            self._preempt(request, PlanBuilder(0, share=0))
        num_forgotten = pool.clear()
        self._backlog.settle_again()
        return num_forgotten

    # -- what others may read

    @property
    def has_work(self) -> bool:
        """Whether a step could advance or admit anything, or has to tell the runner who left."""
        return bool(self._requests or self._left_runner)

    @property
    def stats(self) -> SchedulerStats:
        """Counts as of now."""
        return read_stats(
            self.counters,
            self._manager.pool,
            running=len(self._running),
            waiting=len(self._waiting),
            pending_prefill_tokens=self._backlog.num_tokens,
        )

    def num_tokens_before(self, request_id: str) -> int:
        """Fewest prompt tokens to be computed before a waiting request's first token: see `Backlog`."""
        return self._backlog.num_tokens_before(self._requests[request_id])

    def audit(self) -> int:
        """Blocks in use that no request accounts for. Raises PoolError when the pool contradicts itself."""
        self._manager.pool.audit()
        held = {block for request in self._requests.values() for block in request.table.block_ids}
        return self._manager.pool.num_blocks - self._manager.pool.num_free - len(held)

    # -- how far a running request goes

    def _chunk(self, request: RequestState, start: int, plan: PlanBuilder) -> int:
        """Tokens to compute from `start`: all that the request wants, within the budget and, in company, the cap."""
        is_running = request.status is RequestStatus.RUNNING
        remaining = len(request.tokens) - start
        # One token is kept for each running request that is still to come, so that guesses starve nobody.
        num_to_come = len(self._running) - len(plan.requests) - is_running
        count = min(remaining + len(request.drafts), max(1, plan.budget - num_to_come))
        cap = plan.share if is_running else self._limits.prefill_cap
        shrunk = self._limits.shrunk(cap, start)
        # A few new tokens behind a long cached prefix start at once; what was cut goes on in cuts as long as the first.
        if remaining > min(count, shrunk if is_running else cap) and (
            len(self._running) > is_running or self._gate.newcomer(None if is_running else request)
        ):
            # Ending at a block edge lets it match again there: another request may be computing the same prefix.
            return cut_at_edge(start, min(count, shrunk), self._manager.block_size)
        return count

    def _advance(self, request: RequestState, plan: PlanBuilder) -> None:
        """Plan a row that needs blocks, completes one or may match again; preempt for it when the pool is too small."""
        table, tokens = request.table, request.tokens
        while request.status is RequestStatus.RUNNING:
            match = PrefixMatch([], request.num_computed)
            if request.is_prefilling and len(table.block_ids) * self._manager.block_size == request.num_computed:
                match = self._gate.match(request)
            start = match.num_tokens
            count = self._chunk(request, start, plan)
            new_block_ids = self._manager.reserve(table, tokens, start + count, match.block_ids)
            if new_block_ids is not None:
                self.counters.count_rematch(request, start)
                request.num_computed = start
                self._backlog.note_scheduled(table.hashes[start // self._manager.block_size : table.num_registered])
                plan.add_reserved(request, count, new_block_ids)
                return
            if request.drafts:
                request.drafts = []  # nobody is preempted for a guess
            else:
                self._preempt(self._victim(), plan)

    def _victim(self) -> RequestState:
        """The running request that gives way first. One that lent blocks in this step cannot: others build on them."""
        candidates = [request for request in self._running if not request.table.is_lender]
        return max(candidates, key=self._yields) if self._waiting.is_by_priority else candidates[-1]

    def _yields(self, request: RequestState) -> tuple[int, int]:
        return self._waiting.rank(request), request.arrival

    def _preempt(self, request: RequestState, plan: PlanBuilder) -> None:
        """Back to the queue: blocks released, output kept, its row of this step undone."""
        rank = self._waiting.rank(request)
        plan.withdraw(request)
        plan.preempted_rank = rank if plan.preempted_rank is None else min(rank, plan.preempted_rank)
        self._running.remove(request)
        self._left_runner.append(request.request_id)
        self._manager.release(request.table)
        request.num_computed = request.edge = 0
        request.drafts = []
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._wait(request)

    def _wait(self, request: RequestState) -> None:
        self._waiting.push(request, step=self.counters.steps)
        self._backlog.enter(request)

    # -- who is admitted

    def _admit(self, plan: PlanBuilder) -> None:
        """Start waiting requests in order. The first that does not fit stops it, so that nobody is overtaken."""
        index = 0
        while index < len(self._waiting):
            request = self._waiting[index]
            if plan.preempted_rank is not None and self._waiting.rank(request) >= plan.preempted_rank:
                return  # others made way for one before it, not for this one
            match = self._gate.match(request)
            need = self._gate.need(request, match)
            has_room = len(self._running) < self._limits.max_running and need <= self._gate.room(
                is_idle=not self._running
            )
            count = self._chunk(request, match.num_tokens, plan) if plan.budget > 0 else 0
            is_partial = match.num_tokens + count < len(request.tokens)
            is_one_too_many = is_partial and plan.num_partial >= self._limits.max_partial_prefills
            if count and has_room and not is_one_too_many:
                self._start(request, match, count, plan)
            elif self._make_way(request, match, plan):
                continue  # it is looked at again
            elif count and has_room and index < _LOOK_PAST:
                index += 1  # stepped over; it keeps its place
            else:
                return

    def _start(self, request: RequestState, match: PrefixMatch, count: int, plan: PlanBuilder) -> None:
        self._waiting.remove(request)
        self._running.add(request)
        request.num_computed = match.num_tokens
        if request.is_aged:
            self._aged.append(request)
        request.admitted_s = request.admitted_s or self._clock()
        if request.num_preemptions == 0:
            request.cached_tokens = min(match.num_tokens, request.num_prompt)
        if self._manager.is_caching and reads_cache(request.spec.prompt_logprobs):
            self.counters.count_query(request, match)
        hits = match.block_ids
        new_block_ids = self._manager.reserve(request.table, request.tokens, match.num_tokens + count, hits)
        if new_block_ids is None:
            raise RuntimeError(f"admission of {request.request_id} passed the gate and found no blocks")
        self._backlog.note_scheduled(request.table.hashes[len(hits) : request.table.num_registered])
        plan.started.append(StartedRow(request.spec, request.tokens[:], match.num_tokens, hits))
        plan.add_reserved(request, count, new_block_ids[len(hits) :])

    def _make_way(self, head: RequestState, match: PrefixMatch, plan: PlanBuilder) -> bool:
        """Preempt as few requests of strictly lower rank as let `head` in; nobody when even all would not do."""
        rank = self._waiting.rank(head)
        lower = [r for r in self._running if self._waiting.rank(r) > rank and not r.table.is_lender]
        hits = self._manager.settled(match.block_ids)
        shortfall = Shortfall(
            need=self._manager.need(head.table, len(head.tokens), hits),
            hits=hits,
            num_tokens=len(head.tokens) - len(hits) * self._manager.block_size,
            room=self._gate.room(is_idle=True),
            num_running=len(self._running),
        )
        lower.sort(key=self._yields, reverse=True)
        victims = fewest_victims(lower, shortfall, plan, self._manager, self._limits)
        for victim in victims:
            self._preempt(victim, plan)
        return bool(victims)

    # -- how requests end

    def _end(self, request: RequestState, *, holds_blocks: bool = False) -> None:
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            self._left_runner.append(request.request_id)
        else:
            self._waiting.remove(request)
        self._backlog.leave(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        if not holds_blocks:
            self._manager.release(request.table)

    def _end_faulty(
        self,
        requests: list[RequestState],
        faults: dict[int, str],
        finished: dict[str, tuple[Finish, RequestStats]],
        *,
        forget: bool = False,
    ) -> None:
        """End rows that have no result, unless they ended already. With `forget`, all their blocks are forgotten."""
        for row, reason in faults.items():
            request = requests[row]
            if request.status is RequestStatus.RUNNING:
                self._end(request, holds_blocks=True)
                finished[request.request_id] = (Finish(FinishReason.ERROR, error=reason), stats_of(request))
            self._manager.release(request.table, forget=forget)
