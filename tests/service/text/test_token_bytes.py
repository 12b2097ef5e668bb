"""A token's bytes, for the ways in which tokenizers spell them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headstart.errors import ModelError
from headstart.text.token_bytes import TokenBytes
from tokenizers import Tokenizer


def token_bytes(vocabulary: dict[str, int], decoder: dict[str, Any] | None, **added: int) -> TokenBytes:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    raw = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, "special": True} | flags for token, i in added.items()],
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return TokenBytes(raw, Tokenizer.from_str(json.dumps(raw)))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FALLBACK = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}


def test_byte_level_letters_stand_for_bytes() -> None:
    spell = token_bytes({"Ġa": 0, "ÃĤ": 1}, BYTE_LEVEL)
    assert (spell(0), spell(1)) == (b" a", b"\xc3\x82")


def test_what_is_not_in_the_byte_level_alphabet_is_its_own_text() -> None:
    assert token_bytes({"é日": 0}, BYTE_LEVEL)(0) == "é日".encode()


def test_an_added_token_is_its_own_text() -> None:
    assert token_bytes({"a": 0}, BYTE_LEVEL, Ġend=1)(1) == "Ġend".encode()


def test_a_piece_has_spaces_for_its_underscores_and_a_byte_for_its_name() -> None:
    spell = token_bytes({"▁a": 0, "<0xE2>": 1}, FALLBACK)
    assert (spell(0), spell(1)) == (b" a", b"\xe2")


def test_ids_in_holes_and_beyond_have_no_bytes_however_often_they_are_asked_for() -> None:
    spell = token_bytes({"a": 0, "b": 3}, BYTE_LEVEL)
    assert spell.size == 4
    assert [spell(i) for i in (-1, 1, 2, 4, 1)] == [b""] * 5


def test_asked_again_a_token_has_the_same_bytes() -> None:
    spell = token_bytes({"a": 0}, BYTE_LEVEL)
    assert spell(0) == spell(0) == b"a"


def test_the_longest_token_is_counted_in_bytes() -> None:
    assert token_bytes({"ĠĠa": 0, "b": 1}, BYTE_LEVEL).longest == 3
    assert token_bytes({"ĠĠa": 0, "日本": 1}, BYTE_LEVEL).longest == 6
    assert token_bytes({"a": 0}, BYTE_LEVEL, 日本=1).longest == 6
    assert token_bytes({"日本": 0, "<0xE2>": 1}, FALLBACK).longest >= 6
    assert token_bytes({}, BYTE_LEVEL).longest == 1


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="WordPiece"):
        token_bytes({"a": 0}, {"type": "WordPiece", "prefix": "##", "cleanup": True})
