"""Origins survive what templates do to text, and the plain text behaves as if they were not there."""

from __future__ import annotations

import pytest
from headstart.text.content import MARK, Content, joined, outside_value, plain_text
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.lists(st.tuples(st.text("ab <\n🌶", max_size=5), st.booleans()), max_size=5)


def mixed(pieces: list[tuple[str, bool]]) -> Content:
    return joined(Content.outside(text) if is_outside else text for text, is_outside in pieces)


def origins(text: str) -> list[tuple[str, int]]:
    content = Content.of(text)
    return list(zip(content.plain, content.is_outside, strict=True))


@given(pieces=PIECES)
def test_text_that_lost_its_class_gets_its_origins_back(pieces: list[tuple[str, bool]]) -> None:
    content = mixed(pieces)
    bare = "".join([content])
    assert type(bare) is str
    assert origins(bare) == origins(content)
    assert [(char, outside) for text, outside in pieces for char in text] == origins(content)


@given(pieces=PIECES, start=st.integers(-12, 12), stop=st.integers(-12, 12), step=st.sampled_from([None, 1, 2, -1, -2]))
def test_slices_keep_the_origin_of_each_character(
    pieces: list[tuple[str, bool]], start: int, stop: int, step: int | None
) -> None:
    content = mixed(pieces)
    assert origins(content[start:stop:step]) == origins(content)[start:stop:step]


@given(pieces=PIECES, sep=st.sampled_from(["a", "ab", " ", "\n", "<", "aa"]))
def test_pieces_are_those_of_the_plain_text(pieces: list[tuple[str, bool]], sep: str) -> None:
    content, plain = mixed(pieces), "".join(text for text, _ in pieces)
    assert content == plain
    assert [plain_text(piece) for piece in content.split(sep)] == plain.split(sep)
    assert [plain_text(piece) for piece in content.rsplit(sep, 1)] == plain.rsplit(sep, 1)
    assert [plain_text(piece) for piece in content.split()] == plain.split()
    assert [plain_text(piece) for piece in content.splitlines()] == plain.splitlines()
    assert tuple(map(plain_text, content.partition(sep))) == plain.partition(sep)
    assert tuple(map(plain_text, content.rpartition(sep))) == plain.rpartition(sep)
    assert joined([*content.partition(sep)]).is_outside == content.is_outside
    assert content.replace(sep, "xy") == plain.replace(sep, "xy")
    assert content.strip(sep) == plain.strip(sep)
    assert content.strip() == plain.strip()
    assert content.removeprefix(sep) == plain.removeprefix(sep)
    assert content.removesuffix(sep) == plain.removesuffix(sep)
    assert (sep in content) == (sep in plain)
    assert content.startswith(sep) == plain.startswith(sep)
    assert content.endswith((sep, "b")) == plain.endswith((sep, "b"))
    assert content.find(sep) == plain.find(sep)
    assert content.rfind(sep) == plain.rfind(sep)
    assert content.count(sep) == plain.count(sep)
    assert content.upper() == plain.upper()
    assert content.title() == plain.title()
    assert content.capitalize() == plain.capitalize()
    assert len(content) == len(plain)
    assert list(content) == list(plain)
    assert bool(content) == bool(plain)


def test_split_pieces_keep_their_origins_when_a_separator_looks_like_a_piece() -> None:
    text = "abX" + Content.outside("b")
    assert [origins(piece) for piece in text.split("abX")] == [[], [("b", 1)]]


def test_removing_characters_does_not_forge_markup() -> None:
    text = Content.outside("<|xx|>").replace("xx", "")
    assert "<||>" not in "".join([text])
    assert text == "<||>"


def test_a_replacement_that_changes_case_and_length_counts_as_outside() -> None:
    assert set(("ß" + Content.outside("x")).upper().is_outside) == {1}


def test_comparison_and_lookup_go_by_the_plain_text() -> None:
    key = Content.outside("name")
    assert {key: 1}["name"] == 1
    assert {"name": 1}[key] == 1
    assert key in ["name"]
    assert key != "other"
    assert sorted([Content.outside("b"), "a", Content.outside("c")]) == ["a", "b", "c"]
    assert "a" < Content.outside("b") < "c"


def test_an_outside_value_keeps_its_shape_and_marks_keys_and_strings() -> None:
    seen: list[str] = []
    value = outside_value({"k": ["s", 1, None, {"t": True}]}, seen.append)
    assert value == {"k": ["s", 1, None, {"t": True}]}
    assert seen == ["k", "s", "t"]
    assert all(isinstance(text, Content) for text in (next(iter(value)), value["k"][0]))


@pytest.mark.parametrize("text", ["", " ", "plain"])
def test_text_from_inside_has_no_marks(text: str) -> None:
    assert MARK not in "".join([Content.of(text)])
