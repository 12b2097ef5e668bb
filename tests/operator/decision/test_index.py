"""Matching against the index, and blocks that are only promised."""

from __future__ import annotations

import random
import tracemalloc

from headstart.contract.events import Cleared, Digest, Removed, Stored
from headstart_operator.decision.identity import PodKey
from headstart_operator.decision.index import PrefixIndex
from hypothesis import given
from hypothesis import strategies as st

A, B, C = (PodKey(name, "e") for name in "abc")


def index_of(**chains: list[int]) -> PrefixIndex:
    index = PrefixIndex()
    for uid, blocks in chains.items():
        index.apply(PodKey(uid, "e"), [Stored(block, 0) for block in blocks])
    return index


def test_a_match_is_the_longest_chain_of_each_pod_from_the_start() -> None:
    index = index_of(a=[1, 2, 3], b=[1, 2], c=[2, 3])
    assert index.match([1, 2, 3, 4]) == {A: 3, B: 2}
    assert index.match([1, 2]) == {A: 2, B: 2}
    assert index.match([]) == index.match([9, 1]) == {}


def test_a_hole_ends_a_chain() -> None:
    index = index_of(a=[1, 2, 3])
    index.apply(A, [Removed(2)])
    assert index.match([1, 2, 3]) == {A: 1}


def test_events_applied_twice_change_nothing() -> None:
    index = index_of(a=[1, 2])
    index.apply(A, [Stored(1, 0), Removed(9), Removed(2), Removed(2)])
    assert index.held(A) == {1}
    assert index.digest(A) == Digest(1, 1)


def test_a_cleared_or_dropped_pod_leaves_the_others() -> None:
    index = index_of(a=[1, 2], b=[1])
    index.apply(A, [Cleared(), Stored(5, 0)])
    assert index.match([1]) == {B: 1}
    index.drop(B)
    index.drop(B)
    assert dict(index.dump()) == {5: (A,)}
    assert index.num_blocks() == 1


def test_a_new_pod_inherits_nothing_from_the_one_whose_place_it_takes() -> None:
    index = index_of(a=[1, 2], b=[1])
    index.reserve(A, [3])
    index.drop(A)
    index.apply(C, [Stored(7, 0)])
    assert index.match([1, 2, 3]) == {B: 1}
    assert index.match([7]) == {C: 1}


def test_promised_blocks_count_in_a_match_until_they_are_stored_or_taken_back() -> None:
    index = index_of(a=[1])
    index.reserve(A, [1, 2, 3])
    index.reserve(A, [2])
    assert index.match([1, 2, 3]) == {A: 3}
    assert index.digest(A).num_hashes == 1
    index.release(A, [1, 2, 3])
    assert index.match([1, 2, 3]) == {A: 2}
    index.apply(A, [Stored(2, 1), Removed(2)])
    index.release(A, [2])
    assert index.match([1, 2, 3]) == {A: 1}


def test_nothing_is_promised_by_a_pod_that_is_gone() -> None:
    index = index_of(a=[1])
    index.drop(A)
    index.reserve(A, [1])
    index.release(A, [1])
    assert index.match([1]) == {}


KINDS = ["store", "remove", "clear", "promise"]


@given(
    events=st.lists(st.tuples(st.integers(0, 79), st.integers(1, 12), st.sampled_from(KINDS))),
    chain=st.lists(st.integers(1, 12), max_size=8),
)
def test_matches_agree_with_plain_sets_for_more_pods_than_a_word_has_bits(
    events: list[tuple[int, int, str]], chain: list[int]
) -> None:
    index = PrefixIndex()
    held, promised = ({PodKey(str(number), "e"): set[int]() for number in range(80)} for _ in range(2))
    for key in held:
        index.apply(key, ())
    for number, block, kind in events:
        key, blocks = PodKey(str(number), "e"), range(block, block + 3)
        if kind == "store":
            index.apply(key, [Stored(each, each - 1) for each in blocks])
            held[key] |= set(blocks)
            promised[key] -= set(blocks)
        elif kind == "remove":
            index.apply(key, [Removed(block)])
            held[key] -= {block}
        elif kind == "clear":
            index.apply(key, [Cleared()])
            held[key] = set()
        else:
            index.reserve(key, blocks)
            promised[key] |= set(blocks) - held[key]
    expected = {}
    for key in held:
        known = held[key] | promised[key]
        depth = next((at for at, block in enumerate(chain) if block not in known), len(chain))
        if depth:
            expected[key] = depth
    assert index.match(chain) == expected


def test_a_block_of_a_pod_takes_at_most_200_bytes_even_when_no_other_pod_has_it() -> None:
    num_pods, num_blocks = 8, 10_000
    source = random.Random(1)
    tracemalloc.start()
    index = PrefixIndex()
    for number in range(num_pods):
        index.apply(PodKey(str(number), "e"), (Stored(source.getrandbits(64), 0) for _ in range(num_blocks)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / (num_pods * num_blocks) <= 200
