"""What our own requests will do on pods, for as long as the pods do not show it."""

from __future__ import annotations

import pytest
from headstart.contract.events import Removed, Stored
from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.decision.placements import Placements, PodPlacements

A = PodKey("a", "e")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def placed(*, clock: Clock | None = None) -> tuple[Placements, PrefixIndex]:
    index = PrefixIndex()
    index.apply(A, ())
    placements = Placements(index, clock or Clock())
    placements.add("r1", A, hashes=[1, 2], tokens=32, blocks=2)
    return placements, index


def test_a_sibling_sees_the_blocks_and_the_work_at_once() -> None:
    placements, index = placed()
    placements.add("r2", A, hashes=[3], tokens=16, blocks=1)
    assert placements.of(A) == PodPlacements(num_in_flight=2, num_pending=2, tokens=48, blocks=3)
    assert index.match([1, 2, 3]) == {A: 3}


def test_what_the_pod_has_taken_in_is_counted_by_the_pod() -> None:
    placements, index = placed()
    placements.accept("r1")
    placements.accept("r1")
    placements.accept("of another router")
    assert placements.of(A) == PodPlacements(num_in_flight=1)
    assert index.match([1, 2]) == {A: 2}


def test_at_its_end_nothing_is_left_of_it() -> None:
    placements, index = placed()
    placements.end("r1")
    placements.end("r1")
    assert placements.of(A) == PodPlacements()
    assert index.match([1, 2]) == {}


def test_stored_blocks_are_the_pods_own_from_then_on() -> None:
    placements, index = placed()
    index.apply(A, [Stored(1, 0), Stored(2, 1), Removed(2)])
    assert index.match([1, 2]) == {A: 1}
    placements.end("r1")
    assert index.match([1, 2]) == {A: 1}


def test_blocks_that_do_not_come_are_forgotten_after_a_while() -> None:
    clock = Clock()
    placements, index = placed(clock=clock)
    clock.now_s = 29.0
    placements.expire()
    assert index.match([1]) == {A: 1}
    clock.now_s = 31.0
    placements.expire()
    assert index.match([1]) == {}
    assert placements.of(A).num_in_flight == 1


def test_one_id_is_placed_once_at_a_time() -> None:
    placements, _ = placed()
    with pytest.raises(ValueError, match="already placed"):
        placements.add("r1", A, hashes=[], tokens=1, blocks=1)


def test_a_pod_that_goes_takes_its_promises_along() -> None:
    placements, index = placed()
    index.drop(A)
    assert index.match([1, 2]) == {}
    placements.end("r1")
    assert placements.of(A) == PodPlacements()
