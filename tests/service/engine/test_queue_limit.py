"""What may wait, and what a refused caller is told."""

import pytest
from headstart.engine.messages import LoadRecord
from headstart.engine.queue_limit import QueueLimit
from headstart.errors import InvalidRequestError, UnavailableError
from service.engine.harness import spec

IDLE = LoadRecord(0, 0, 0, 0, (), 0, 0.0, 0.0)


def busy(pending, rate):
    return IDLE._replace(pending_prefill_tokens=pending, prefill_tokens_per_s=rate)


def refusal(queue, specs, load=IDLE):
    with pytest.raises(UnavailableError) as caught:
        queue.check(specs, load)
    return caught.value


def test_requests_are_counted_until_they_leave():
    queue = QueueLimit(max_requests=2, max_tokens=1000)
    for name in ("a", "b"):
        queue.check([spec(name)], IDLE)
        queue.enter(spec(name))
    refusal(queue, [spec("c")])
    queue.leave("a")
    queue.leave("a")
    assert (len(queue), queue.num_tokens) == (1, 10)
    queue.check([spec("c")], IDLE)


def test_choices_of_one_request_are_taken_together_or_not_at_all():
    queue = QueueLimit(max_requests=3, max_tokens=1000)
    queue.enter(spec("a"))
    refusal(queue, [spec("b"), spec("c"), spec("d")])
    queue.check([spec("b"), spec("c")], IDLE)


def test_tokens_that_a_request_resumes_from_count():
    queue = QueueLimit(max_requests=10, max_tokens=25)
    queue.enter(spec("a"))
    queue.check([spec("b")], IDLE)
    refusal(queue, [spec("b", resume_token_ids=(1, 2, 3, 4, 5, 6))])


def test_an_empty_queue_takes_a_request_of_any_size():
    QueueLimit(max_requests=1, max_tokens=5).check([spec("big", prompt=range(100))], IDLE)


@pytest.mark.parametrize(
    ("load", "expected"),
    [(IDLE, 0.1), (busy(10, 1000.0), 0.1), (busy(2000, 1000.0), 2.0), (busy(10**6, 1.0), 5.0)],
)
def test_the_time_to_retry_is_that_of_the_work_ahead_within_bounds(load, expected):
    queue = QueueLimit(max_requests=1, max_tokens=0)
    queue.enter(spec("before"))
    assert refusal(queue, [spec()], load).retry_after_s == expected


def test_more_choices_than_ever_fit_are_the_callers_mistake_and_not_a_matter_of_time():
    with pytest.raises(InvalidRequestError, match="3 choices; the queue of this pod holds 2") as caught:
        QueueLimit(max_requests=2, max_tokens=1000).check([spec("a"), spec("a#1"), spec("a#2")], IDLE)
    assert caught.value.field == "n"
