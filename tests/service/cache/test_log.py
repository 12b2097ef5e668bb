"""The record of the cache: numbered batches without gaps, and a mirror that answers for the past."""

from collections import deque
from collections.abc import Iterator

import pytest
from headstart.cache.log import CacheMirror, EventLog
from headstart.contract.events import Cleared, Digest, EventBatch, Removed, Stored
from headstart.contract.prefix import wire_hash
from hypothesis import given
from hypothesis import strategies as st


def digest(number: int) -> bytes:
    return number.to_bytes(8, "big") * 4


def batches(count: int) -> tuple[EventLog, CacheMirror]:
    log = EventLog()
    mirror = CacheMirror(log.epoch, capacity=10)
    for number in range(1, count + 1):
        log.stored(digest(number), digest(number - 1) if number > 1 else None)
        batch = log.seal()
        assert batch is not None
        mirror.apply(batch)
    return log, mirror


def test_batches_are_numbered_from_1_and_an_empty_step_takes_no_number() -> None:
    log = EventLog()
    assert log.seal() is None
    log.stored(digest(1), None)
    assert log.seal() == EventBatch(1, (Stored(1, 0),), Digest(1, 1))
    assert log.seal() is None
    log.removed(digest(1))
    assert log.seal() == EventBatch(2, (Removed(1),), Digest(0, 0))


def test_two_processes_have_two_epochs() -> None:
    assert EventLog().epoch != EventLog().epoch


def test_a_store_that_is_taken_back_before_the_seal_leaves_no_trace() -> None:
    log = EventLog()
    log.stored(digest(1), None)
    log.stored(digest(2), digest(1))
    log.removed(digest(2))
    assert log.seal() == EventBatch(1, (Stored(1, 0),), Digest(1, 1))
    log.removed(digest(1))
    log.stored(digest(1), None)
    log.removed(digest(1))
    assert log.seal() == EventBatch(2, (Removed(1),), Digest(0, 0))


def test_a_clear_empties_the_digest() -> None:
    log, mirror = batches(3)
    log.cleared()
    batch = log.seal()
    assert batch == EventBatch(4, (Cleared(),), Digest(0, 0))
    mirror.apply(batch)
    assert mirror.held == {}


def test_deltas_are_given_from_a_known_position() -> None:
    _, mirror = batches(19)
    after = mirror.since(mirror.epoch, 10)
    assert after is not None
    assert [batch.seq for batch in after] == list(range(11, 20))
    assert mirror.since(mirror.epoch, 19) == []


def test_a_position_too_old_too_new_or_of_another_epoch_needs_a_snapshot() -> None:
    _, mirror = batches(19)
    assert mirror.since(mirror.epoch, 8) is None
    assert mirror.since(mirror.epoch, 9) is not None
    assert mirror.since(mirror.epoch, 20) is None
    assert mirror.since("another", 19) is None


def test_a_gap_is_refused() -> None:
    _, mirror = batches(2)
    with pytest.raises(ValueError, match="4 does not follow 2"):
        mirror.apply(EventBatch(4, (), Digest(0, 0)))


def test_a_snapshot_stays_what_it_was_while_the_mirror_goes_on() -> None:
    log, mirror = batches(5)
    seq, chunks = mirror.snapshot(2)
    log.removed(digest(5))
    batch = log.seal()
    assert batch is not None
    mirror.apply(batch)
    assert seq == 5
    assert [hashes for hashes, _ in chunks] == [[1, 2], [3, 4], [5]]
    assert 5 not in mirror.held


@given(st.lists(st.integers(1, 14), max_size=30), st.lists(st.integers(0, 14), max_size=40), st.integers(1, 5))
def test_a_snapshot_read_slowly_is_still_that_of_its_moment(before: list[int], after: list[int], size: int) -> None:
    log = EventLog()
    mirror = CacheMirror(log.epoch, capacity=100)
    truth: set[int] = set()

    def change(number: int) -> None:
        if number == 0:
            truth.clear()
            log.cleared()
        elif number in truth:
            truth.remove(number)
            log.removed(digest(number))
        else:
            truth.add(number)
            log.stored(digest(number), digest(number // 2) if number > 1 else None)
        if batch := log.seal():
            mirror.apply(batch)

    for number in before:
        change(number)
    then = dict(mirror.held)
    seq, chunks = mirror.snapshot(size)
    pairs = []
    for number in after:
        change(number)
        hashes, parents = next(chunks, ([], []))
        pairs += zip(hashes, parents, strict=True)
    pairs += [pair for hashes, parents in chunks for pair in zip(hashes, parents, strict=True)]
    assert dict(pairs) == then
    assert len(pairs) == len(then)
    places = {key: place for place, (key, _) in enumerate(pairs)}
    assert all(places[parent] < places[key] for key, parent in pairs if parent in places)
    assert seq <= mirror.seq


class _ReadFromTheRight(deque[EventBatch]):
    """A ring in which a walk from the oldest batch on is an error."""

    def __iter__(self) -> Iterator[EventBatch]:
        raise AssertionError("the whole ring was walked")


def test_what_is_new_is_found_without_walking_the_whole_ring() -> None:
    log, mirror = batches(9)
    mirror._ring = _ReadFromTheRight(mirror._ring)
    assert [batch.seq for batch in mirror.since(log.epoch, 7) or ()] == [8, 9]
    assert mirror.since(log.epoch, 9) == []


def test_an_empty_mirror_has_an_empty_snapshot() -> None:
    seq, chunks = CacheMirror("epoch", capacity=1).snapshot(10)
    assert (seq, list(chunks)) == (0, [])


def test_parents_come_first_even_when_they_were_stored_again_later() -> None:
    log, mirror = batches(3)
    log.removed(digest(1))
    log.stored(digest(1), None)
    batch = log.seal()
    assert batch is not None
    mirror.apply(batch)
    assert list(mirror.held) == [2, 3, 1]
    _, chunks = mirror.snapshot(10)
    assert list(chunks) == [([1, 2, 3], [0, 1, 2])]


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=60), st.integers(1, 7))
def test_mirror_digest_and_snapshot_agree_with_the_truth(changes: list[tuple[int, bool]], every: int) -> None:
    log = EventLog()
    mirror = CacheMirror(log.epoch, capacity=100)
    truth: set[int] = set()
    for index, (number, parent_known) in enumerate(changes):
        if number in truth:
            truth.remove(number)
            log.removed(digest(number))
        else:
            truth.add(number)
            log.stored(digest(number), digest(number - 1) if parent_known and number > 1 else None)
        if index % every == 0 and (batch := log.seal()):
            mirror.apply(batch)
    if batch := log.seal():
        mirror.apply(batch)
    expected = {wire_hash(digest(number)) for number in truth}
    assert set(mirror.held) == expected
    xor = 0
    for key in expected:
        xor ^= key
    assert mirror.digest == Digest(len(expected), xor)
    _, chunks = mirror.snapshot(3)
    pairs = [(key, parent) for hashes, parents in chunks for key, parent in zip(hashes, parents, strict=True)]
    assert {key for key, _ in pairs} == expected
    places = {key: place for place, (key, _) in enumerate(pairs)}
    assert all(places[parent] < places[key] for key, parent in pairs if parent in places)
