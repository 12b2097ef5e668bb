"""The conductor: one thread that turns commands into steps and steps into published results.

    take commands -> schedule -> forward -> commit -> decode -> seal the event log -> publish

It decides nothing that the scheduler, the runner or the decoder can decide, and knows nothing of asyncio or gRPC:
whoever starts it passes the function that carries a result to the other side. It owns the thread, the set of live
requests with their deadlines, and everything in `EngineParts`; others use `send`, `join` and the plain attributes.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headstart.cache.log import EventLog
from headstart.contract.events import EventBatch
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, StepOutput, StepPlan, StepUpdates
from headstart.engine.deadlines import Deadlines
from headstart.engine.decoder import Decoder
from headstart.engine.messages import (
    CANCELLED,
    DEADLINE_PASSED,
    Add,
    Cancel,
    Command,
    LoadRecord,
    Reset,
    StepResult,
)
from headstart.engine.outbox import Outbox
from headstart.engine.rates import StepRates
from headstart.engine.trace import StepTracer
from headstart.errors import DeadlineExceededError, HeadstartError, InternalError
from headstart.runner.runner import Runner
from headstart.scheduler.scheduler import Scheduler

_LOGGER = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0001
_STALL_WAIT_S = 0.01
_CERTAINTY = 2.0
"""By how much the best pace seen may be beaten: a request is refused for its deadline only when it is hopeless."""

StepObserver = Callable[[StepPlan, StepOutput | None, StepUpdates], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What the conductor conducts. `tracer` and `on_step` watch committed steps; a fault of theirs ends the engine."""

    scheduler: Scheduler
    runner: Runner
    decoder: Decoder
    log: EventLog
    tracer: StepTracer | None = None
    on_step: StepObserver | None = None


class EngineLoop:
    """`clock` is monotonic seconds. An engine that has been idle for `audit_after_s` checks its blocks, once."""

    def __init__(
        self, parts: EngineParts, *, clock: Callable[[], float] = time.monotonic, audit_after_s: float = 0.5
    ) -> None:
        self.clock = clock
        self.epoch = parts.log.epoch
        self.step_started_s = 0.0
        """When the step in progress started, on `clock`; 0.0 while idle. A step without progress does not renew it."""
        self.is_alive = False
        self._scheduler = parts.scheduler
        self._runner = parts.runner
        self._decoder = parts.decoder
        self._log = parts.log
        self._tracer = parts.tracer
        self._on_step = parts.on_step
        self._audit_after_s = audit_after_s
        self._rates = StepRates()
        self._outbox = Outbox()
        self._live = Deadlines()
        self._leaked_blocks = 0
        self._is_audited = False
        self._is_stopping = False
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._publish_result: Callable[[StepResult], None]  # these two are given to `start`
        self._on_exit: Callable[[bool], None]
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- for other threads

    def start(self, publish: Callable[[StepResult], None], on_exit: Callable[[bool], None]) -> None:
        """Start the thread. Both callables are called on it and must not block.

        `on_exit` is the last thing it calls, with True when it was asked to stop and False when it broke.
        """
        self._publish_result = publish
        self._on_exit = on_exit
        # A thread that waits for the GIL asks for it after this time. With the default of 5 ms a step would stand still
        # that long each time the server's thread is busy, and several times the length of a short decode step.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self.is_alive = True
        self._thread.start()

    def send(self, command: Command) -> None:
        """Queue a command; it is obeyed before the next step. Never blocks."""
        self._commands.put(command)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    # -- the thread

    def _run(self) -> None:
        is_clean = False
        try:
            self._conduct()
            is_clean = True
        except BaseException:
            # An invariant is broken: state that contradicts itself must not serve anybody.
            _LOGGER.critical("the engine loop broke and stops; this process should be replaced", exc_info=True)
        finally:
            self.is_alive = False
            self._on_exit(is_clean)

    def _conduct(self) -> None:
        is_busy = False
        while True:
            self._take_commands(is_busy=is_busy)
            if self._is_stopping:
                return
            for request_id in self._live.expired(self.clock()):
                self._abort(request_id, DEADLINE_PASSED)
            is_busy = self._scheduler.has_work and self._step()
            if self._outbox.is_due:
                self._publish()

    def _step(self) -> bool:
        """One step. False when it advanced nobody: then there is nothing to do but wait."""
        plan = self._scheduler.schedule()
        self._note_started(plan)
        if self._outbox.is_due:
            # Answers to commands go out before the forward: it may take seconds.
            self._publish()
        if not plan.num_rows and not plan.finished:
            return False
        started_s = self.clock()
        output = self._forward(plan)
        updates = self._scheduler.commit(plan, output)
        if output is not None and plan.num_rows:
            seconds = self.clock() - started_s
            self._rates.observe(plan, seconds)
            self._outbox.step_time = (seconds, plan.total_tokens)
        self._release(self._decoder.push(updates))
        for request_id in updates.finished:
            self._live.drop(request_id)
        batch = self._seal()
        if self._on_step is not None:
            self._on_step(plan, output, updates)
        if self._tracer is not None:
            self._outbox.trace = self._tracer.record(plan, self._scheduler.stats, batch)
        self._outbox.has_news = True
        return plan.num_rows > 0

    def _forward(self, plan: StepPlan) -> StepOutput | None:
        """What the runner found; None when it failed. The step's requests end then, the pod goes on."""
        try:
            return self._runner.submit(plan).result()
        except Exception:
            _LOGGER.exception("step %d failed; its %d requests end", plan.step, plan.num_rows)
            return None

    def _note_started(self, plan: StepPlan) -> None:
        for row in plan.started:
            self._outbox.started.append(row.spec.request_id)
            if row.spec.prompt_logprobs is not None:
                self._decoder.restart(row.spec.request_id)

    def _release(self, chunks: list[Chunk]) -> None:
        """Send the chunks; end in the scheduler, still in this step, the requests that their own text ended."""
        for chunk in chunks:
            if chunk.finish is None or chunk.stats is not None:
                self._outbox.chunks.append(chunk)
                continue
            stats = self._scheduler.abort(chunk.request_id)
            self._live.drop(chunk.request_id)
            self._outbox.chunks.append(replace(chunk, stats=stats))

    def _seal(self) -> EventBatch | None:
        batch = self._log.seal()
        if batch is not None:
            self._outbox.batches.append(batch)
        return batch

    def _publish(self) -> None:
        stats = self._scheduler.stats
        load = LoadRecord(
            seq=self._log.seq,
            running=stats.running,
            waiting=stats.waiting,
            pending_prefill_tokens=stats.pending_prefill_tokens,
            accepted=tuple(self._outbox.accepted),
            free_blocks=stats.free_blocks,
            prefill_tokens_per_s=self._rates.prefill_tokens_per_s,
            decode_step_s=self._rates.decode_step_s(stats.running),
        )
        result = self._outbox.result(
            load=load,
            stats=stats,
            num_decoder_faults=self._decoder.num_faults,
            leaked_blocks=self._leaked_blocks,
        )
        self._outbox = Outbox()
        self._publish_result(result)

    # -- commands

    def _take_commands(self, *, is_busy: bool) -> None:
        """Obey everything that is queued. Waits for the first command when there is nothing to step."""
        if is_busy:
            self.step_started_s = self.clock()
        else:
            command = self._wait()
            if command is not None:
                self._obey(command)
        while not self._is_stopping:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            self._obey(command)

    def _wait(self) -> Command | None:
        """The next command; None when there is none but it is time to look at the work again."""
        has_work = self._scheduler.has_work
        if has_work:
            timeout_s: float | None = _STALL_WAIT_S
        else:
            self.step_started_s = 0.0
            timeout_s = None if self._is_audited else self._audit_after_s
        try:
            command = self._commands.get(timeout=timeout_s)
        except queue.Empty:
            if not has_work:
                self._audit()
            return None
        self._is_audited = False
        if not has_work:
            self.step_started_s = self.clock()
        return command

    def _obey(self, command: Command) -> None:
        if isinstance(command, Add):
            self._add(command.spec)
        elif isinstance(command, Cancel):
            self._abort(command.request_id, CANCELLED)
        elif isinstance(command, Reset):
            self._reset(command)
        else:
            self._stop()

    def _add(self, spec: GenerateSpec) -> None:
        try:
            self._scheduler.add(spec)
        except HeadstartError as error:
            self._outbox.refused.append((spec.request_id, error))
            return
        try:
            self._refuse_if_late(spec)
            self._decoder.start(spec)
        except Exception as error:
            self._scheduler.abort(spec.request_id)
            if not isinstance(error, HeadstartError):
                _LOGGER.exception("request %s could not be decoded", spec.request_id)
                error = InternalError("the request could not be prepared")
            self._outbox.refused.append((spec.request_id, error))
            return
        self._live.add(spec)
        self._outbox.accepted.append(spec.request_id)

    def _refuse_if_late(self, spec: GenerateSpec) -> None:
        """Raises DeadlineExceededError when even twice this pod's best pace would not reach its first token in time."""
        pace = _CERTAINTY * self._rates.best_prefill_tokens_per_s
        if spec.deadline_s is None or pace == 0.0:
            return
        left_s = spec.deadline_s - self.clock()
        if left_s <= 0.0 or self._scheduler.stats.pending_prefill_tokens <= left_s * pace:
            return
        num_before = self._scheduler.num_tokens_before(spec.request_id)
        if num_before > left_s * pace:
            raise DeadlineExceededError(
                f"{num_before} prompt tokens come before the first one, which takes more than "
                f"{num_before / pace:.3g} s; the deadline is in {left_s:.3g} s"
            )

    def _reset(self, command: Reset) -> None:
        try:
            answer: int | HeadstartError = self._scheduler.reset(force=command.force)
        except HeadstartError as error:
            answer = error
        self._outbox.resets.append((command.ticket, answer))
        self._seal()

    def _stop(self) -> None:
        for request_id in self._live.request_ids:
            self._abort(request_id, CANCELLED)
        self._is_stopping = True
        self._publish()

    def _abort(self, request_id: str, finish: Finish) -> None:
        """End a live request between two steps; others are ignored."""
        if request_id not in self._live:
            return
        stats = self._scheduler.abort(request_id)
        self._decoder.drop(request_id)
        self._live.drop(request_id)
        self._outbox.chunks.append(Chunk(request_id, "", [], finish=finish, stats=stats))

    def _audit(self) -> None:
        self._is_audited = True
        self._leaked_blocks = self._scheduler.audit()
        self._outbox.has_news = True
        if self._leaked_blocks:
            _LOGGER.error("%d blocks are held by nobody", self._leaked_blocks)
