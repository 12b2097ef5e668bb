"""The waiting queue: its order, and when a wait is long enough to go first."""

from headstart.core.request import RequestState, RequestStatus
from headstart.scheduler.waiting import AGING_STEPS, WaitingQueue
from support.chain import spec


def request(name: str, arrival: int, priority: int = 0) -> RequestState:
    state = RequestState(spec(name, 5, priority=priority), max_len=100, eos_token_ids=frozenset())
    state.arrival = arrival
    return state


def names(queue: WaitingQueue) -> list[str]:
    return [waiting.request_id for waiting in queue]


def test_priority_then_arrival_decide() -> None:
    queue = WaitingQueue(by_priority=True)
    for place, (name, priority) in enumerate([("a", 2), ("b", 0), ("c", 0), ("d", -1)]):
        queue.push(request(name, place, priority), step=0)
    assert names(queue) == ["d", "b", "c", "a"]


def test_fcfs_knows_no_priority() -> None:
    queue = WaitingQueue(by_priority=False)
    for place, (name, priority) in enumerate([("a", 2), ("b", 0)]):
        queue.push(request(name, place, priority), step=0)
    assert names(queue) == ["a", "b"]


def test_a_removed_request_is_no_longer_in_line() -> None:
    queue = WaitingQueue(by_priority=True)
    first, second = request("a", 0), request("b", 1)
    queue.push(first, step=0)
    queue.push(second, step=0)
    queue.remove(first)
    assert names(queue) == ["b"]


def test_only_an_unbroken_wait_makes_a_request_go_first() -> None:
    queue = WaitingQueue(by_priority=True)
    low, high = request("low", 0, 9), request("high", 1, 0)
    queue.push(low, step=0)
    queue.push(high, step=0)
    queue.remove(low)
    low.status = RequestStatus.RUNNING
    queue.push(low, step=AGING_STEPS - 4)
    queue.promote(step=AGING_STEPS)
    assert names(queue) == ["high", "low"]
    queue.promote(step=2 * AGING_STEPS - 5)
    assert names(queue) == ["high", "low"]
    queue.promote(step=2 * AGING_STEPS - 4)
    assert names(queue) == ["low", "high"]
    assert low.is_aged
