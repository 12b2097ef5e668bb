"""Who waits for a pod, who goes next and who is sent away, with a pod that is a counter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from headstart.errors import DeadlineExceededError, ResourceExhaustedError, UnavailableError
from headstart_operator.decision.admission import Admission, Arrival, QueueLimits


class Pod:
    """Room for a few requests; remembers who came in."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.order: list[str] = []
        self.is_gone = False

    def claim_for(self, name: str) -> Callable[[], str | None]:
        def try_claim() -> str | None:
            if self.is_gone:
                raise UnavailableError("no pod")
            if not self.room:
                return None
            self.room -= 1
            self.order.append(name)
            return name

        return try_claim

    def leave(self, claim: str) -> None:
        self.room += 1


@pytest.fixture
def pod() -> Pod:
    return Pod(0)


@pytest.fixture
async def queue(pod: Pod) -> AsyncIterator[Admission[str]]:
    admission = Admission[str](
        pod.leave, limits=QueueLimits(max_requests=4, max_tokens=100, max_requests_per_tenant=3), clock=lambda: 0.0
    )
    yield admission
    await admission.close()


def _arrival(tenant: str = "a", deadline_s: float | None = None, num_tokens: int = 1) -> Arrival:
    return Arrival(line="model", tenant=tenant, num_tokens=num_tokens, deadline_s=deadline_s)


async def _queue_up(queue: Admission[str], pod: Pod, *names: tuple[str, Arrival]) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(queue.admit(arrival, pod.claim_for(name))) for name, arrival in names]
    await asyncio.sleep(0)
    assert queue.num_waiting == len(names)
    return tasks


async def test_a_request_goes_straight_through_when_there_is_room(queue: Admission[str], pod: Pod) -> None:
    pod.room = 1
    assert await queue.admit(_arrival(), pod.claim_for("first")) == "first"
    assert queue.num_waiting == 0


async def test_the_earliest_deadline_goes_first_and_none_means_a_minute(queue: Admission[str], pod: Pod) -> None:
    tasks = await _queue_up(
        queue, pod, ("late", _arrival(deadline_s=90.0)), ("none", _arrival()), ("soon", _arrival(deadline_s=9.0))
    )
    pod.room = 3
    queue.wake()
    await asyncio.gather(*tasks)
    assert pod.order == ["soon", "none", "late"]


async def test_tenants_take_turns(queue: Admission[str], pod: Pod) -> None:
    tasks = await _queue_up(
        queue,
        pod,
        ("a1", _arrival("a")),
        ("a2", _arrival("a")),
        ("a3", _arrival("a")),
        ("b1", _arrival("b")),
    )
    pod.room = 4
    queue.wake()
    await asyncio.gather(*tasks)
    assert pod.order == ["a1", "b1", "a2", "a3"]


async def test_a_newcomer_does_not_overtake_the_line(queue: Admission[str], pod: Pod) -> None:
    (waiting,) = await _queue_up(queue, pod, ("first", _arrival()))
    pod.room = 1
    newcomer = asyncio.create_task(queue.admit(_arrival(), pod.claim_for("second")))
    assert await waiting == "first"
    newcomer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await newcomer


async def test_room_is_found_without_a_wake(queue: Admission[str], pod: Pod) -> None:
    (waiting,) = await _queue_up(queue, pod, ("first", _arrival()))
    pod.room = 1
    assert await asyncio.wait_for(waiting, 5) == "first"


async def test_a_full_queue_sends_away_with_a_hint(queue: Admission[str], pod: Pod) -> None:
    tasks = await _queue_up(queue, pod, *((str(i), _arrival(str(i))) for i in range(4)))
    with pytest.raises(UnavailableError, match="too many requests wait") as refusal:
        await queue.admit(_arrival("z"), pod.claim_for("z"))
    assert refusal.value.retry_after_s > 0
    await queue.close()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, UnavailableError)


async def test_prompt_tokens_are_bounded_too(queue: Admission[str], pod: Pod) -> None:
    with pytest.raises(UnavailableError, match="too many requests wait"):
        await queue.admit(_arrival(num_tokens=101), pod.claim_for("long"))
    assert queue.num_waiting == 0


async def test_one_tenant_cannot_fill_the_queue(queue: Admission[str], pod: Pod) -> None:
    await _queue_up(queue, pod, *((str(i), _arrival("a")) for i in range(3)))
    with pytest.raises(ResourceExhaustedError):
        await queue.admit(_arrival("a"), pod.claim_for("fourth"))
    other = asyncio.create_task(queue.admit(_arrival("b"), pod.claim_for("other")))
    await asyncio.sleep(0)
    assert not other.done()


async def test_a_lines_own_limits_bound_that_line_only(queue: Admission[str], pod: Pod) -> None:
    def arrival(line: str, tenant: str, **limits: int) -> Arrival:
        return Arrival(line=line, tenant=tenant, num_tokens=10, limits=QueueLimits(**limits))

    await _queue_up(queue, pod, ("first", arrival("small", "a", max_requests=1)))
    with pytest.raises(UnavailableError):
        await queue.admit(arrival("small", "b", max_requests=1), pod.claim_for("second"))
    with pytest.raises(UnavailableError):
        await queue.admit(arrival("small", "b", max_tokens=19), pod.claim_for("long"))
    with pytest.raises(ResourceExhaustedError):
        await queue.admit(arrival("small", "a", max_requests_per_tenant=1), pod.claim_for("again"))
    other = asyncio.create_task(queue.admit(arrival("other", "a", max_requests=1), pod.claim_for("other")))
    await asyncio.sleep(0)
    assert queue.num_waiting == 2
    pod.room = 2
    queue.wake()
    await other
    pod.room = 1
    assert await queue.admit(arrival("small", "a", max_requests=0), pod.claim_for("through")) == "through"


async def test_a_deadline_that_the_queue_outlasts_ends_the_wait(queue: Admission[str], pod: Pod) -> None:
    with pytest.raises(DeadlineExceededError):
        await queue.admit(_arrival(deadline_s=0.01), pod.claim_for("late"))
    assert queue.num_waiting == 0
    pod.room = 1
    queue.wake()
    assert pod.order == []


async def test_when_every_pod_is_gone_the_line_is_told_at_once(queue: Admission[str], pod: Pod) -> None:
    tasks = await _queue_up(queue, pod, ("a", _arrival()), ("b", _arrival()))
    pod.is_gone = True
    queue.wake()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, UnavailableError)


async def test_a_claim_granted_as_its_request_left_is_given_back(queue: Admission[str], pod: Pod) -> None:
    (waiting,) = await _queue_up(queue, pod, ("gone", _arrival()))
    pod.room = 1
    queue.wake()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pod.order == ["gone"]
    assert pod.room == 1
