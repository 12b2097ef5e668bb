"""From a request to the pod that runs it: read the prompt once, wait for a turn, claim the cheapest pod.

A job holds one reading of its prompt per group of pods that serve the model: groups differ in tokenizer or hash root,
as during a rollout, and all of them are candidates. Knows nothing of streams or of what comes back. Owner of its state
(the ids in progress): the operator's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.limits import Limits
from headstart.edge.validation import check_generate, check_prompt, unknown_model
from headstart.errors import AlreadyExistsError, HeadstartError, InvalidRequestError, UnavailableError

from headstart_operator.decision.admission import RECHECK_S, Admission, Arrival, QueueLimits
from headstart_operator.decision.catalog import Catalog, Entry
from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.pool import Pools
from headstart_operator.decision.reading import Job, Reading, Tokenized, tokenize, understand
from headstart_operator.decision.score import Ranked
from headstart_operator.decision.view import PodView
from headstart_operator.pods.fleet import Fleet
from headstart_operator.serving.metrics import RouteMetrics

_SEED_BITS = 63
_NUMBER_BITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A place on a pod, until it is settled. `request_id` is the pod's own: the job's and the attempt's."""

    request_id: str
    reading: Reading
    ranked: Ranked
    num_candidates: int

    @property
    def view(self) -> PodView:
        return self.ranked.view

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.reading.request.token_ids.ids)

    @property
    def predicted_cached_tokens(self) -> int:
        """As the pod will count what it found: of the prompt, without output that a request brings along."""
        return min(self.ranked.predicted_cached_tokens, self.num_prompt_tokens)

    def route(self) -> pb.Route:
        """The receipt."""
        return route_of(self.ranked, self.num_candidates, num_prompt_tokens=self.num_prompt_tokens)


def route_of(ranked: Ranked, num_candidates: int, *, num_prompt_tokens: int) -> pb.Route:
    return pb.Route(
        pod=ranked.view.name,
        predicted_cached_tokens=min(ranked.predicted_cached_tokens, num_prompt_tokens),
        matched_blocks=ranked.matched_blocks,
        candidates=num_candidates,
        queue_s=ranked.queue_s,
        work_s=ranked.work_s,
    )


class Balancer:
    """The operator's decisions. `queue_limits` bound all that waits; `pools` may bound what waits for one of them."""

    def __init__(
        self,
        fleet: Fleet,
        catalog: Catalog,
        *,
        queue_limits: QueueLimits,
        metrics: RouteMetrics,
        pools: Pools | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._pools = pools or Pools()
        self._catalog = catalog
        self._metrics = metrics
        self._clock = clock
        self._admission = Admission[Claim](
            self._give_back,
            limits=queue_limits,
            clock=clock,
        )
        self._running: set[str] = set()
        self._numbers = itertools.count(secrets.randbits(_NUMBER_BITS))
        self._known_models: set[str] = set()

    @property
    def num_waiting(self) -> int:
        return self._admission.num_waiting

    @property
    def num_running(self) -> int:
        """Requests in progress, those that wait included."""
        return len(self._running)

    def count_requests(self) -> dict[str, int]:
        """Those in progress: `waiting` for a pod, or `running`."""
        return {"waiting": self.num_waiting, "running": self.num_running - self.num_waiting}

    async def read(self, request: pb.GenerateRequest, *, tenant: str = "") -> Job:
        """Check and tokenize a request for every group of its model. Without a `tenant` its salt stands for one.

        The request is the job's from now on: what has token ids gets an id and a seed in place.

        Raises InvalidRequestError, NotFoundError for a model that no pod serves, UnavailableError when its pods are
        gone.
        """
        await self._await_return(request.model)
        groups = self._groups(request.model)
        field = request.WhichOneof("prompt") or "prompt"
        request_id = request.request_id or secrets.token_hex(12)
        seed = request.sampling.seed if request.sampling.HasField("seed") else secrets.randbits(_SEED_BITS)
        readings: list[Reading] = []
        refusals: list[tuple[int, HeadstartError]] = []
        read: dict[str, Tokenized] = {}
        for group in groups:
            max_len = 0
            try:
                views = self._views(group)
                entry = await self._catalog.entry(views)
                max_len = entry.limits.max_len
                check_generate(request, entry.limits)
                tokenized = read.get(group.tokenizer_fingerprint)
                if tokenized is None:
                    tokenized = await tokenize(request, entry, request_id=request_id, seed=seed)
                    read[group.tokenizer_fingerprint] = tokenized
                check_prompt(field, tokenized.token_ids, entry.limits)
                readings.append(await understand(tokenized, entry, views[0]))
            except HeadstartError as error:
                refusals.append((max_len, error))
        if not readings:  # then the group that takes the longest requests has the last word on what would fit
            raise max(refusals, key=lambda refusal: refusal[0])[1]
        tenant = tenant or request.cache_salt
        return Job(
            request_id=request_id,
            name_on_pods=f"{request_id}~{next(self._numbers) % (1 << _NUMBER_BITS):05x}",
            model=groups[0].model,
            tenant=tenant,
            readings=tuple(readings),
        )

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Hold the job's id. Raises AlreadyExistsError while another request of this id runs."""
        if job.request_id in self._running:
            raise AlreadyExistsError(f"request_id: {job.request_id!r} is still running")
        self._running.add(job.request_id)
        try:
            yield
        finally:
            self._running.discard(job.request_id)

    async def admit(self, job: Job, *, deadline_s: float | None) -> Claim:
        """The cheapest pod that has room, once it is the job's turn.

        Raises UnavailableError when there are no pods or too many wait, ResourceExhaustedError for a tenant that has
        too many waiting, DeadlineExceededError.
        """
        arrival = Arrival(
            line=job.model,
            tenant=job.tenant,
            num_tokens=job.readings[0].query.prompt_tokens,
            deadline_s=deadline_s,
            limits=self._pools.limits_of(job.readings[0].group.pool),
        )
        return await self._admission.admit(arrival, lambda: self._claim(job.readings, f"{job.name_on_pods}.0"))

    def reclaim(
        self, job: Job, *, attempt: int, failed: Collection[PodKey], reading: Reading | None = None
    ) -> Claim | None:
        """Another pod for a job whose pods `failed`, at once and whether it has room or not; None when there is none.

        With a `reading`, a continuation: its group only, and the numerics of the last failed pod first.
        """
        readings = job.readings if reading is None else (reading,)
        try:
            return self._claim(readings, f"{job.name_on_pods}.{attempt}", failed=failed, needs_room=False)
        except UnavailableError:
            return None

    def settle(self, claim: Claim, usage: pb.Usage | None = None) -> None:
        """Give the place back. `usage` is what the pod counted, of a request that ended well.

        Of one that goes on where another broke off nothing is learnt: what is found for it is not what requests find.
        """
        if claim.reading.request.resume.choices:
            usage = None
        if usage is not None:
            predicted = claim.predicted_cached_tokens
            self._metrics.ended(predicted_tokens=predicted, actual_tokens=usage.cached_tokens)
        self._fleet.settle(
            claim.request_id,
            claim.view,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )
        self._admission.wake()

    async def entry(self, model: str) -> Entry:
        """How prompts of a model are read by its largest group. Raises as `read`."""
        return await self._catalog.entry(self._views(self._groups(model)[0]))

    async def models(self) -> list[pb.Model]:
        """What is served now, each model once."""
        models = {group.model for group in self._fleet.groups()}
        return [(await self.entry(model)).model for model in sorted(models)]

    async def limits(self) -> Limits:
        """What is above them no model served here could take. Raises UnavailableError when there is none."""
        if not self._catalog.is_informed:
            await self.models()
        return self._catalog.widest_limits()

    def explain(self, job: Job) -> list[Ranked]:
        """All candidates for a job, the best first, whether they have room or not."""
        return [ranked for _, ranked in self._ranked(job.readings, failed=(), needs_room=False)]

    async def close(self) -> None:
        """Send everyone away who waits."""
        await self._admission.close()

    # ---- reading

    async def _await_return(self, model: str) -> None:
        """While the only pods of a model have just been lost, one may be back at any moment."""
        while not self._fleet.groups(model) and self._fleet.is_expected(model):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._fleet.changed()

    def _groups(self, model: str) -> Sequence[GroupKey]:
        self._known_models.update(group.model for group in self._fleet.groups())
        groups = self._fleet.groups(model)
        if groups and len({group.model for group in groups}) > 1:
            raise InvalidRequestError("model", "several models are served here; name one")
        if groups:
            return groups
        if not self._fleet.is_ready:
            raise UnavailableError("the operator does not know its pods yet", retry_after_s=1.0)
        if model and self._known_models and model not in self._known_models:
            raise unknown_model(model, self._known_models)
        raise UnavailableError("no pod serves this model now", retry_after_s=1.0)

    def _views(self, group: GroupKey) -> list[PodView]:
        return [view for view in self._fleet.snapshot() if view.group == group]

    # ---- claiming

    def _ranked(
        self, readings: Sequence[Reading], *, failed: Collection[PodKey], needs_room: bool
    ) -> list[tuple[Reading, Ranked]]:
        """Candidates of all groups. Within a group the order is the fleet's: ties are not for their cost to decide."""
        longest = _longest(readings)
        by_group = []
        for reading in readings:
            excluded = self._unfit(reading, longest).union(failed)
            ranked = self._fleet.rank(reading.group, reading.query, excluded=excluded, has_room=needs_room)
            by_group.append([(reading, each) for each in ranked])
        if len(by_group) == 1:
            return by_group[0]
        return list(heapq.merge(*by_group, key=lambda pair: pair[1].cost_s))

    def _claim(
        self, readings: Sequence[Reading], request_id: str, *, failed: Collection[PodKey] = (), needs_room: bool = True
    ) -> Claim | None:
        """None when every candidate is full or may be back at once. Raises UnavailableError when there is none."""
        started_s = self._clock()
        ranked = self._ranked(readings, failed=failed, needs_room=needs_room)
        if not ranked:
            if self._may_come(readings, failed) or self._fleet.is_expected(readings[0].group.model):
                return None
            is_short = any(view.key not in failed for reading in readings for view in self._views(reading.group))
            served = "a request of this length" if is_short else "this model"
            raise UnavailableError(f"no pod serves {served} now", retry_after_s=1.0)
        reading, best = ranked[0]
        self._fleet.place(request_id, best, reading.query)
        self._metrics.decided(self._clock() - started_s)
        return Claim(request_id=request_id, reading=reading, ranked=best, num_candidates=len(ranked))

    def _unfit(self, reading: Reading, longest: int) -> set[PodKey]:
        """Pods of its group whose context is too short for it, or not known yet."""
        least_len, length_of = reading.least_len(longest), self._catalog.context_length
        return {view.key for view in self._views(reading.group) if (length_of(view.key) or 0) < least_len}

    def _may_come(self, readings: Sequence[Reading], failed: Collection[PodKey]) -> bool:
        """Whether a pod that is there may take one of them later: it is full, or has not said its context yet."""
        longest = _longest(readings)
        least_lens = {reading.group: reading.least_len(longest) for reading in readings}
        for view in self._fleet.snapshot():
            least_len = least_lens.get(view.group)
            if least_len is None or view.key in failed:
                continue
            if (self._catalog.context_length(view.key) or least_len) >= least_len:
                return True
        return False

    def _give_back(self, claim: Claim) -> None:
        self.settle(claim)


def _longest(readings: Sequence[Reading]) -> int:
    """Tokens that prompt and output may have together where most are taken."""
    return max(reading.entry.limits.max_len for reading in readings)
