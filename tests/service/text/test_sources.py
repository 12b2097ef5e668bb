"""Tokenizers read from GGUF metadata and from model directories."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from headstart.errors import ModelError
from headstart.text.tokenizer import load_directory, load_gguf
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

TEXTS = [
    "Hello 12345 world",
    "a  b\n\n c don't I'LL",
    "Über größe 你好 🌶 e\u0301",
    "x1y22z333 ½²",
    "\t\ttabs \r\n end  ",
]


def gguf_of(library: Tokenizer, pre: str, **further: Any) -> dict[str, Any]:
    """What a converter writes about a byte-level tokenizer."""
    raw = json.loads(library.to_str())
    ids = library.get_vocab(with_added_tokens=True)
    special = {entry["content"]: 3 if entry["special"] else 4 for entry in raw["added_tokens"]}
    tokens = sorted(ids, key=lambda token: ids[token])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [special.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in raw["model"]["merges"]],
        **{f"tokenizer.{name.replace('__', '.')}": value for name, value in further.items()},
    }


@pytest.mark.parametrize(("family", "pre"), [("llama_like", "llama-bpe"), ("qwen_like", "qwen2")])
def test_gguf_metadata_makes_the_tokenizer_that_it_was_converted_from(
    request: pytest.FixtureRequest, write_model: Callable[..., Path], family: str, pre: str
) -> None:
    library = request.getfixturevalue(family)
    from_gguf = load_gguf(gguf_of(library, pre))
    from_directory = load_directory(write_model(library))
    assert from_gguf.vocab_size == from_directory.vocab_size
    assert from_gguf.special_ids == from_directory.special_ids
    for text in TEXTS:
        for allowed in (False, True):
            ids = from_gguf.encode(text + "<|end|><aside>", allow_special=allowed)
            assert ids == from_directory.encode(text + "<|end|><aside>", allow_special=allowed)
            assert from_gguf.decode(ids) == from_directory.decode(ids)


def test_pre_tokenizers_differ_in_how_they_cut_numbers(llama_like: Tokenizer) -> None:
    def pieces(pre: str) -> list[bytes]:
        tokenizer = load_gguf(gguf_of(llama_like, pre))
        return [tokenizer.token_bytes(i) for i in tokenizer.encode("2345")]

    assert pieces("smollm") == pieces("qwen2") == [b"2", b"3", b"4", b"5"]
    assert pieces("llama-bpe")[-1] == b"5"
    assert pieces("gpt-2")[-1] == b"45"


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("qwen2", False)])
def test_the_beginning_token_is_added_as_the_family_does_or_as_the_file_says(
    llama_like: Tokenizer, pre: str, expected: bool
) -> None:
    bos = llama_like.token_to_id("<|begin|>")
    assert load_gguf(gguf_of(llama_like, pre, ggml__bos_token_id=bos)).add_bos is expected
    told = gguf_of(llama_like, pre, ggml__bos_token_id=bos, ggml__add_bos_token=not expected)
    assert load_gguf(told).add_bos is not expected
    assert not load_gguf(gguf_of(llama_like, pre)).add_bos


def test_all_ends_that_a_gguf_file_names_are_ends(llama_like: Tokenizer) -> None:
    end, turn_end = (llama_like.token_to_id(name) for name in ("<|end|>", "<|turn_end|>"))
    metadata = gguf_of(llama_like, "llama-bpe", ggml__eos_token_id=end, ggml__eot_token_id=turn_end)
    assert load_gguf(metadata).eos_token_ids == {end, turn_end}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.pre": "exotic-9"}, "exotic-9"),
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.model": "llama"}, "score"),
    ],
)
def test_an_unknown_gguf_tokenizer_is_named(llama_like: Tokenizer, change: dict[str, str], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        load_gguf(gguf_of(llama_like, "gpt-2") | change)


def test_gguf_metadata_without_tokens_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="tokens"):
        load_gguf({"tokenizer.ggml.model": "gpt2"})


PIECES = {
    "▁": -1.0, "a": -9.0, "b": -9.5, "c": -9.7, "ab": -2.0, "bc": -1.5, "abc": -3.0, "▁a": -2.5, "▁ab": -4.0,
    "cc": -5.0, "▁▁": -1.2, "ca": -5.5,
}  # fmt: skip
SCORED = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SCORED,
    "tokenizer.ggml.scores": [PIECES.get(piece, 0.0) for piece in SCORED],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def sentencepiece(text: str) -> list[str]:
    """The algorithm as SentencePiece states it: again and again merge the pair with the best score, leftmost first."""
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(-PIECES[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in PIECES]
        if not pairs:
            return pieces
        _, i = heapq.nsmallest(1, pairs)[0]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@given(text=st.text("abc ", min_size=1, max_size=20))
def test_scores_become_the_merges_that_sentencepiece_would_make(text: str) -> None:
    tokenizer = load_gguf(SENTENCEPIECE)
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert [SCORED[i] for i in ids[1:]] == sentencepiece(text)
    assert tokenizer.decode(ids) == text


def test_unknown_characters_fall_back_to_bytes() -> None:
    tokenizer = load_gguf(SENTENCEPIECE)
    ids = tokenizer.encode("é")[1:]
    assert [SCORED[i] for i in ids] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "é"


def test_a_directory_gives_all_its_ends_and_special_tokens(
    llama_like: Tokenizer, write_model: Callable[..., Path]
) -> None:
    end, turn_end = (llama_like.token_to_id(name) for name in ("<|end|>", "<|turn_end|>"))
    path = write_model(
        llama_like,
        tokenizer_config={"bos_token": {"content": "<|begin|>"}, "eos_token": "<|turn_end|>", "pad_token": None},
        special_tokens_map={"eos_token": "<|end|>", "unk_token": "<|end|>"},
        generation_config={"eos_token_id": [end, 7]},
        config={"eos_token_id": end},
    )
    tokenizer = load_directory(path)
    assert tokenizer.eos_token_ids == {end, turn_end, 7}
    assert tokenizer.bos_token_id == llama_like.token_to_id("<|begin|>")
    assert tokenizer.special_tokens == {
        "bos_token": "<|begin|>",
        "eos_token": "<|turn_end|>",
        "unk_token": "<|end|>",
    }
    assert not tokenizer.add_bos


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (None, None)),
        ({"tokenizer_config": {"chat_template": "A"}}, ("A", None)),
        ({"chat_template": {"chat_template": "B"}, "tokenizer_config": {"chat_template": "A"}}, ("B", None)),
        (
            {
                "tokenizer_config": {
                    "chat_template": [{"name": "default", "template": "C"}, {"name": "tool_use", "template": "D"}]
                }
            },
            ("C", "D"),
        ),
    ],
)
def test_the_chat_template_is_found_where_it_may_lie(
    llama_like: Tokenizer, write_model: Callable[..., Path], files: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    tokenizer = load_directory(write_model(llama_like, **files))
    assert (tokenizer.template, tokenizer.tool_template) == expected


def test_a_template_file_of_its_own_wins(llama_like: Tokenizer, write_model: Callable[..., Path]) -> None:
    path = write_model(llama_like, tokenizer_config={"chat_template": "A"})
    (path / "chat_template.jinja").write_text("E", encoding="utf-8")
    assert load_directory(path).template == "E"


def test_a_directory_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_directory(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "Nonsense"}}', '{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_a_model_error(write_model: Callable[..., Path], content: str) -> None:
    with pytest.raises(ModelError):
        load_directory(write_model(content))


def test_an_unsupported_decoder_is_named(llama_like: Tokenizer, write_model: Callable[..., Path]) -> None:
    raw = json.loads(llama_like.to_str()) | {
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }
    with pytest.raises(ModelError, match="WordPiece"):
        load_directory(write_model(json.dumps(raw)))
