"""The incremental text machine, held to one-shot decoding and to stop strings cut out of the whole text."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from headstart.text.detokenizer import StreamDecoder, TextDelta
from headstart.text.tokenizer import Tokenizer, load_directory
from hypothesis import given
from hypothesis import strategies as st

ODD_IDS = st.one_of(
    st.integers(0, 49151), st.integers(0, 16), st.integers(180, 260), st.sampled_from([10813, 230, 131])
)
PEPPER = [10813, 230, 131]


def groups(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """`ids` cut into runs of the given sizes, again and again."""
    cut, position, turn = [], 0, 0
    while position < len(ids):
        cut.append(list(ids[position : position + sizes[turn % len(sizes)]]))
        position += sizes[turn % len(sizes)]
        turn += 1
    return cut


def run(decoder: StreamDecoder, ids: Sequence[int], sizes: Sequence[int] = (1,)) -> list[TextDelta]:
    return [*(decoder.push(group) for group in groups(ids, sizes)), decoder.push([], is_last=True)]


def text_of(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas: Sequence[TextDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def stop_of(deltas: Sequence[TextDelta]) -> str | None:
    found = [delta.stop_string for delta in deltas if delta.stop_string is not None]
    assert len(found) <= 1
    return found[0] if found else None


@given(ids=st.lists(ODD_IDS, max_size=60), sizes=st.lists(st.integers(1, 9), min_size=1), skip=st.booleans())
def test_joined_deltas_equal_one_shot_decoding_for_any_grouping(
    smollm: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    deltas = run(StreamDecoder(smollm, skip_special=skip), ids, sizes)
    assert text_of(deltas) == smollm.decode(ids, skip_special=skip)
    assert tokens_of(deltas) == ids
    assert all(delta.num_tokens == len(delta.token_ids) for delta in deltas)


@given(ids=st.lists(ODD_IDS, max_size=40))
def test_the_tokens_delivered_so_far_decode_to_the_text_delivered_so_far(smollm: Tokenizer, ids: list[int]) -> None:
    decoder = StreamDecoder(smollm, stop_strings=["\u2603 never \u2603", "aaaaaa", " the the"])
    text, tokens = "", list[int]()
    for token_id in ids:
        delta = decoder.push([token_id])
        text += delta.text
        tokens += delta.token_ids
        assert delta.stop_string is None
        assert smollm.decode(tokens) == text


@given(
    words=st.lists(st.sampled_from([" the", " fox", "a", "b", "ab", "\n", "é", "🌶", " "]), max_size=25),
    stops=st.lists(st.sampled_from(["ab", "b", "\n", "the fox", " the", "🌶a", "é\n", "abab"]), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 6), min_size=1),
    include=st.booleans(),
)
def test_stop_strings_cut_the_text_at_the_leftmost_longest_match(
    smollm: Tokenizer, words: list[str], stops: list[str], sizes: list[int], include: bool
) -> None:
    text = "".join(words)
    ids = smollm.encode(text)
    deltas = run(StreamDecoder(smollm, stop_strings=stops, include_stop=include), ids, sizes)
    starts = {text.find(stop): stop for stop in sorted(stops, key=len) if stop in text}
    if not starts:
        assert (text_of(deltas), tokens_of(deltas), stop_of(deltas)) == (text, ids, None)
        return
    start, stop = min(starts.items())
    assert stop_of(deltas) == stop
    assert text_of(deltas) == text[: start + len(stop) * include]
    delivered = tokens_of(deltas)
    assert delivered == ids[: len(delivered)]
    assert text[: start + len(stop)] in smollm.decode(delivered)
    assert text[: start + len(stop)] not in smollm.decode(delivered[:-1])


def test_sentences_come_back_whole_in_deltas_of_one_three_and_eight(smollm: Tokenizer) -> None:
    rng = random.Random(5)
    words = ["logs", "and", "the", "Über", "naïve", "🌶", "你好", "42", "x=y", "...", "don't"]
    for _ in range(500):
        text = " ".join(rng.choice(words) for _ in range(12))
        ids = smollm.encode(text)
        for size in (1, 3, 8):
            assert text_of(run(StreamDecoder(smollm), ids, [size])) == text


def test_a_character_that_is_never_completed_becomes_one_replacement(smollm: Tokenizer) -> None:
    for sizes in ([1], [2], [9]):
        deltas = run(StreamDecoder(smollm), PEPPER[:2], sizes)
        assert text_of(deltas) == "\ufffd" == smollm.decode(PEPPER[:2])
        assert tokens_of(deltas) == PEPPER[:2]


def test_the_tokens_of_one_character_leave_together(smollm: Tokenizer) -> None:
    decoder = StreamDecoder(smollm)
    assert decoder.push(PEPPER[:1]) == ("", (), 0, None)
    assert decoder.push(PEPPER[1:2]) == ("", (), 0, None)
    assert decoder.push(PEPPER[2:]) == ("🌶", tuple(PEPPER), 3, None)


def test_a_special_token_inside_a_character_waits_for_its_turn(smollm: Tokenizer) -> None:
    decoder = StreamDecoder(smollm)
    assert decoder.push([10813, 2]) == ("", (), 0, None)
    assert decoder.push([230, 131]) == ("🌶", (10813, 2, 230, 131), 4, None)


def test_a_long_stop_string_holds_back_nothing_that_cannot_begin_it(smollm: Tokenizer) -> None:
    decoder = StreamDecoder(smollm, stop_strings=["Z" * 20])
    for token_id in smollm.encode("quite normal text"):
        assert decoder.push([token_id]).token_ids == (token_id,)
    (last,) = smollm.encode("Z")
    assert decoder.push([last]).text == ""
    assert decoder.push([], is_last=True) == ("Z", (last,), 1, None)


@pytest.mark.parametrize(
    ("stops", "include", "text", "stop"),
    [
        (["c", "b"], False, "a ", "b"),
        (["c", "b"], True, "a b", "b"),
        (["b", "b c"], False, "a ", "b c"),
        (["b", "b c"], True, "a b c", "b c"),
        (["a b c d"], False, "", "a b c d"),
        (["a b c d"], True, "a b c d", "a b c d"),
        (["x"], True, "a b c d", None),
    ],
)
def test_several_stops(smollm: Tokenizer, stops: list[str], include: bool, text: str, stop: str | None) -> None:
    for size in (1, 2, 9):
        deltas = run(StreamDecoder(smollm, stop_strings=stops, include_stop=include), smollm.encode("a b c d"), [size])
        assert (text_of(deltas), stop_of(deltas)) == (text, stop)


def test_nothing_comes_out_after_a_match(smollm: Tokenizer) -> None:
    decoder = StreamDecoder(smollm, stop_strings=["\n"])
    ids = smollm.encode("one\ntwo")
    delta = decoder.push(ids)
    assert (delta.text, delta.token_ids, delta.stop_string) == ("one", tuple(ids[:2]), "\n")
    assert decoder.push(ids) == ("", (), 0, None)
    assert decoder.push(ids, is_last=True) == ("", (), 0, None)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_stop_inside_the_first_min_tokens_neither_ends_nor_cuts(smollm: Tokenizer, size: int) -> None:
    ids = smollm.encode("a\nb\nc\nd\ne\nf")
    decoder = StreamDecoder(smollm, stop_strings=["\n"], min_tokens=6)
    deltas = run(decoder, ids, [size])
    assert text_of(deltas) == "a\nb\nc\nd"
    assert tokens_of(deltas) == ids[:8]
    assert stop_of(deltas) == "\n"


def test_a_stop_that_begins_inside_the_first_min_tokens_does_not_match(smollm: Tokenizer) -> None:
    ids = smollm.encode("a\nb\nc")
    deltas = run(StreamDecoder(smollm, stop_strings=["\nb"], min_tokens=2), ids)
    assert (text_of(deltas), stop_of(deltas)) == ("a\nb\nc", None)


def test_special_tokens_give_no_text_and_match_no_stop_by_default(smollm: Tokenizer) -> None:
    deltas = run(StreamDecoder(smollm, stop_strings=["<|im_end|>"]), [4093, 2, 4093])
    assert (text_of(deltas), stop_of(deltas)) == ("useruser", None)
    assert tokens_of(deltas) == [4093, 2, 4093]


def test_special_tokens_can_be_shown_and_then_match(smollm: Tokenizer) -> None:
    decoder = StreamDecoder(smollm, stop_strings=["<|im_end|>"], skip_special=False)
    deltas = run(decoder, [1, 4093, 2, 4093])
    assert (text_of(deltas), stop_of(deltas)) == ("<|im_start|>user", "<|im_end|>")
    assert tokens_of(deltas) == [1, 4093, 2]


@given(ids=st.lists(ODD_IDS, max_size=40), cut=st.integers(0, 40), stops=st.lists(st.sampled_from(["a", " the", "\n"])))
def test_a_resumed_stream_goes_on_where_the_tokens_of_the_first_end(
    smollm: Tokenizer, ids: list[int], cut: int, stops: list[str]
) -> None:
    whole = run(StreamDecoder(smollm, stop_strings=stops, min_tokens=5), ids)
    first = StreamDecoder(smollm, stop_strings=stops, min_tokens=5)
    seen = [first.push([token_id]) for token_id in ids[:cut]]
    delivered = tokens_of(seen)
    if stop_of(seen) is not None:
        return
    second = StreamDecoder(smollm, stop_strings=stops, min_tokens=5)
    second.prime(delivered)
    rest = run(second, ids[len(delivered) :])
    assert text_of(seen) + text_of(rest) == text_of(whole)
    assert delivered + tokens_of(rest) == tokens_of(whole)
    assert stop_of(rest) == stop_of(whole)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_sentencepiece_output_loses_its_first_space_once(
    mistral_like: Any, write_model: Callable[..., Path], size: int
) -> None:
    tokenizer = load_directory(write_model(mistral_like))
    for text in ("The quick  fox 🌶 ok", "two   spaces", "你好 мир"):
        ids = tokenizer.encode(text)
        assert text_of(run(StreamDecoder(tokenizer), ids, [size])) == text == tokenizer.decode(ids)


def test_random_sentencepiece_ids_equal_one_shot_decoding(mistral_like: Any, write_model: Callable[..., Path]) -> None:
    tokenizer = load_directory(write_model(mistral_like))
    rng = random.Random(11)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(20)]
        assert text_of(run(StreamDecoder(tokenizer), ids, [rng.randrange(1, 6)])) == tokenizer.decode(ids)


@pytest.mark.parametrize("stops", [[], ["Z" * 500 + "!"]])
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_token_costs_the_same_however_long_the_output_is(smollm: Tokenizer, stops: list[str], size: int) -> None:
    """Counted in executed lines: ten times the output may cost ten times the lines, not a hundred times."""
    (token_id,) = smollm.encode("Z")

    def lines_for(number: int) -> int:
        decoder = StreamDecoder(smollm, stop_strings=stops)
        count = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            deltas = run(decoder, [token_id] * number, [size])
        finally:
            sys.settrace(None)
        assert len(text_of(deltas)) == number
        return count

    assert lines_for(10_000) < 12 * lines_for(1_000)


def test_a_long_output_in_one_push_or_token_by_token_is_the_same(smollm: Tokenizer) -> None:
    rng = random.Random(2)
    ids = [rng.randrange(smollm.vocab_size) for _ in range(100_000)]
    assert text_of(run(StreamDecoder(smollm), ids)) == text_of(run(StreamDecoder(smollm), ids, [100_000]))
