"""Who is late, and when that is looked at."""

from headstart.engine.deadlines import Deadlines
from service.engine.harness import spec


def test_those_whose_time_has_come_are_late_and_no_others():
    live = Deadlines()
    for name, deadline_s in (("a", 5.0), ("b", 3.0), ("c", None), ("d", 8.0)):
        live.add(spec(name, deadline_s=deadline_s))
    assert live.expired(2.9) == []
    assert live.expired(3.0) == ["b"]
    live.drop("b")
    live.drop("b")
    assert live.expired(6.0) == ["a"]
    live.drop("a")
    assert live.expired(7.0) == []
    assert live.request_ids == ["c", "d"]
    assert live.expired(1e9) == ["d"]


def test_a_dropped_request_is_not_late():
    live = Deadlines()
    live.add(spec("a", deadline_s=1.0))
    assert "a" in live
    live.drop("a")
    assert "a" not in live
    assert live.expired(2.0) == []


def test_an_earlier_deadline_that_comes_later_is_seen():
    live = Deadlines()
    live.add(spec("a", deadline_s=10.0))
    assert live.expired(1.0) == []
    live.add(spec("b", deadline_s=2.0))
    assert live.expired(2.0) == ["b"]
