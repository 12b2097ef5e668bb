"""Hashes of prefixes that came before are those that would be worked out, and nobody else's."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from unittest import mock

import pytest
from headstart.contract.prefix import block_hashes, encode_extras, wire_hashes
from headstart_operator.decision import hashing
from headstart_operator.decision.hashing import PrefixHasher
from hypothesis import given
from hypothesis import strategies as st

ROOT = b"r" * 32
BLOCK = 4


@pytest.fixture
def worked_out() -> Iterator[mock.Mock]:
    """Counts the segments whose hashes are worked out."""
    with mock.patch.object(hashing, "block_hashes", wraps=block_hashes) as counted:
        yield counted


def expected(token_ids: array[int], extras: bytes = b"") -> list[int]:
    return wire_hashes(block_hashes(ROOT, token_ids, BLOCK, extras))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 600), st.sampled_from(["", "a"])), max_size=6))
def test_hashes_are_the_same_whatever_came_before(asked: list[tuple[int, int, str]]) -> None:
    hasher = PrefixHasher()
    for seed, length, salt in asked:
        source = random.Random(7)
        token_ids = array("I", [source.randrange(1000) for _ in range(300)] + [seed] * 300)[:length]
        extras = encode_extras(cache_salt=salt)
        assert hasher.hashes(ROOT, token_ids, BLOCK, extras) == expected(token_ids, extras)


def test_of_a_prefix_that_came_before_only_the_rest_is_worked_out(worked_out: mock.Mock) -> None:
    hasher = PrefixHasher()
    first, second = (array("I", [*range(1000), *own]) for own in (range(5, 400), range(9, 400)))
    for token_ids, num_segments in ((first, 6), (first, 0), (second, 3)):
        worked_out.reset_mock()
        assert hasher.hashes(ROOT, token_ids, BLOCK, b"") == expected(token_ids)
        assert worked_out.call_count == num_segments


def test_another_root_or_salt_finds_nothing(worked_out: mock.Mock) -> None:
    hasher, token_ids = PrefixHasher(), array("I", range(BLOCK))
    for root, salt in ((ROOT, ""), (b"s" * 32, ""), (ROOT, "a"), (ROOT, "b")):
        hasher.hashes(root, token_ids, BLOCK, encode_extras(cache_salt=salt))
    assert worked_out.call_count == 4


def test_what_came_long_ago_is_forgotten_first(worked_out: mock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_MAX_SEGMENTS", 2)
    hasher = PrefixHasher()
    for number, num_worked_out in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        token_ids = array("I", [number] * BLOCK)
        assert hasher.hashes(ROOT, token_ids, BLOCK, b"") == expected(token_ids)
        assert worked_out.call_count == num_worked_out
