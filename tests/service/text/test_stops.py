"""Stop strings: leftmost, then longest, whatever the pieces in which the text arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from headstart.text.stops import StopMatch, StopSearch, StopStrings
from hypothesis import given
from hypothesis import strategies as st

ALPHABET = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


def leftmost_longest(text: str, stops: list[str]) -> StopMatch | None:
    """The definition, written out."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            return StopMatch(start, start + max(map(len, here)))
    return None


def search(text: str, stops: list[str], cuts: list[int]) -> StopMatch | None:
    machine = StopSearch(StopStrings(stops))
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        match = machine.push(text[start:end])
        if match:
            return match
    return machine.finish()


@given(text=ALPHABET, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=5))
def test_the_match_is_the_leftmost_longest_for_any_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    assert search(text, stops, cuts) == leftmost_longest(text, stops)


@given(text=ALPHABET, stops=STOPS)
def test_without_a_match_exactly_the_longest_open_suffix_is_held(text: str, stops: list[str]) -> None:
    machine = StopSearch(StopStrings(stops))
    if leftmost_longest(text, stops):
        return
    assert machine.push(text) is None
    suffixes = [text[start:] for start in range(len(text) + 1)]
    prefixes = {stop[:length] for stop in stops for length in range(len(stop))}
    assert machine.num_held == max(len(suffix) for suffix in suffixes if suffix in prefixes)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["c", "b"], "b"),
        (["b", "c"], "b"),
        (["b", "b c"], "b c"),
        (["b c", "b"], "b c"),
        (["d", "b x"], "d"),
        (["a b c d", "c"], "a b c d"),
        (["a b c d e", "c"], "c"),
    ],
)
def test_the_order_of_the_stops_does_not_matter(stops: list[str], expected: str) -> None:
    text = "a b c d"
    match = search(text, stops, list(range(len(text))))
    assert match is not None
    assert text[match.start : match.end] == expected


def test_an_empty_stop_matches_nothing() -> None:
    assert search("abc", [""], []) is None


def test_a_match_is_final_as_soon_as_no_better_one_can_come() -> None:
    machine = StopSearch(StopStrings(["b", "bcd"]))
    assert machine.push("ab") is None
    assert machine.num_held == 1
    assert machine.push("c") is None
    assert machine.num_held == 2
    assert machine.push("x") == (1, 2)
