"""Text to ids and back, for the built-in model and for tokenizers in the manner of other families."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from headstart.errors import InvalidRequestError, ModelError
from headstart.text.tokenizer import Tokenizer, load_directory
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

WORDS = [
    "the",
    "own",
    "fox",
    "beta",
    "gamma",
    "Über",
    "größe",
    "façade",
    "naïve",
    "Привет",
    "мир",
    "你好",
    "世界",
    "こんにちは",
    "한국어",
    "שלום",
    "مرحبا",
    "ไทย",
    "🌶",
    "🙂",
    "👩\u200d👩\u200d👧",
    "🏳️\u200d🌈",
    "ď",
    "é",
    "x1",
    "42",
    "3.14159",
    "1,000,000",
    "½",
    "²",
    "don't",
    "I'll",
    "it's",
    "def",
    "return",
    "lambda",
    "x:",
    "{}",
    "[]",
    "()",
    "<b>",
    "</b>",
    "a_b",
    "CamelCase",
    "#include",
    "...",
    "--",
    "\xa0",
    "\u200d",
]
GLUES = (" ", " ", " ", "  ", "\n", "\n\n", "\t", "", "\r\n", "    ")


def varied_texts(number: int) -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choice(WORDS) + rng.choice(GLUES) for _ in range(rng.randrange(1, 25))) for _ in range(number)]


@pytest.fixture(params=["smollm", "llama_like", "qwen_like", "mistral_like"])
def model_directory(request: pytest.FixtureRequest, write_model: Callable[..., Path]) -> Path:
    tokenizer = request.getfixturevalue(request.param)
    if isinstance(tokenizer, Tokenizer):
        tokenizer = request.getfixturevalue("smollm_library_json")
    return write_model(tokenizer)


@pytest.fixture(scope="session")
def smollm_library_json(smollm: Tokenizer) -> str:
    return json.dumps(json.loads(smollm.to_document())["tokenizer"])


def test_varied_texts_encode_and_decode_as_in_transformers(model_directory: Path) -> None:
    ours = load_directory(model_directory)
    reference = PreTrainedTokenizerFast.from_pretrained(model_directory)
    for text in varied_texts(200):
        ids = ours.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False)


def test_a_vocabulary_taken_as_it_is_encodes_as_the_one_that_the_library_reads(model_directory: Path) -> None:
    ours = load_directory(model_directory)
    document = json.loads(ours.to_document())
    document["tokenizer"]["model"]["a key that is not known"] = None  # then the library reads the whole text
    read = Tokenizer(document)
    control = "".join(entry["content"] + " x " for entry in document["tokenizer"]["added_tokens"])
    for text in [control, *varied_texts(50)]:
        for allow_special in (False, True):
            assert ours.encode(text, allow_special=allow_special) == read.encode(text, allow_special=allow_special)


def test_the_built_in_model_has_the_ids_that_its_cases_name(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert len(smollm.special_ids) == 17
    assert smollm.eos_token_ids == {2}
    assert smollm.bos_token_id == 1
    assert not smollm.add_bos
    assert smollm.encode("🌶") == [10813, 230, 131]
    assert smollm.encode("ď") == [143, 233]
    assert smollm.encode("own fox") == [845, 16438]
    assert smollm.encode("beta gamma") == [17565, 16439]


def test_control_tokens_in_plain_text_stay_text(smollm: Tokenizer) -> None:
    text = "a<|im_end|>\n<|im_start|>system<|endoftext|><repo_name>"
    ids = smollm.encode(text)
    assert smollm.control_ids.isdisjoint(ids)
    assert smollm.decode(ids) == text


def test_control_tokens_are_read_where_the_caller_allows_them(smollm: Tokenizer) -> None:
    assert smollm.encode("<|im_start|>user", allow_special=True) == [1, 4093]


@given(pieces=st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "|>", "<|", " ", "x", "<repo_name>"])))
def test_no_mixture_of_token_pieces_yields_a_control_token(smollm: Tokenizer, pieces: list[str]) -> None:
    ids = smollm.encode("".join(pieces))
    assert smollm.control_ids.isdisjoint(ids)
    assert smollm.decode(ids) == "".join(pieces)


@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "[TURN]x[/TURN]", "a </s> b"])
def test_sentencepiece_text_never_yields_control_tokens(
    mistral_like: Any, write_model: Callable[..., Path], text: str
) -> None:
    tokenizer = load_directory(write_model(mistral_like))
    ids = tokenizer.encode(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


def test_added_tokens_count_as_control_tokens_only_where_the_template_writes_them(
    qwen_like: Any, write_model: Callable[..., Path]
) -> None:
    config = {"chat_template": "<call>{{ messages[0].content }}</call>"}
    tokenizer = load_directory(write_model(qwen_like, tokenizer_config=config))
    call, aside = (qwen_like.token_to_id(name) for name in ("<call>", "<aside>"))
    ids = tokenizer.encode("<call><aside>")
    assert call not in ids
    assert aside in ids
    assert aside not in tokenizer.special_ids


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udfff"])
def test_text_that_no_wire_can_carry_is_refused_and_names_its_field(smollm: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        smollm.encode(text, field="prompt.text")
    assert caught.value.field == "prompt.text"


def test_a_document_makes_the_same_tokenizer_again(smollm: Tokenizer) -> None:
    again = Tokenizer.from_document(smollm.to_document())
    assert again.fingerprint == smollm.fingerprint
    assert again.template == smollm.template
    assert again.control_ids == smollm.control_ids
    for text in varied_texts(20):
        assert again.encode(text) == smollm.encode(text)


def test_the_fingerprint_covers_the_template(llama_like: Any, write_model: Callable[..., Path]) -> None:
    directories = [write_model(llama_like, tokenizer_config={"chat_template": text}) for text in ("a", "b")]
    first, second = map(load_directory, directories)
    assert first.fingerprint != second.fingerprint
    assert first.encode("hello") == second.encode("hello")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"tokenizer": {}}', b"\xff"])
def test_a_broken_document_is_a_model_error(content: bytes) -> None:
    with pytest.raises(ModelError):
        Tokenizer.from_document(content)


def test_the_beginning_token_is_added_once(llama_like: Any, write_model: Callable[..., Path]) -> None:
    config = {"bos_token": "<|begin|>", "add_bos_token": True}
    tokenizer = load_directory(write_model(llama_like, tokenizer_config=config))
    bos = llama_like.token_to_id("<|begin|>")
    assert tokenizer.encode("fox")[0] == bos
    assert tokenizer.encode("")[:2] == [bos]
    assert tokenizer.encode("<|begin|>fox", allow_special=True).count(bos) == 1
    assert tokenizer.encode("<|begin|>fox").count(bos) == 1


def test_token_bytes_are_the_raw_bytes_even_of_half_a_character(smollm: Tokenizer) -> None:
    assert [smollm.token_bytes(i) for i in (10813, 230, 131)] == [b"\xf0\x9f", b"\x8c", b"\xb6"]
    assert smollm.token_bytes(2) == b"<|im_end|>"
    assert smollm.token_bytes(49152) == b""
    assert smollm.token_bytes(-1) == b""


def test_random_ids_decode_as_in_transformers(smollm: Tokenizer, smollm_library_json: str, write_model: Any) -> None:
    reference = PreTrainedTokenizerFast.from_pretrained(write_model(smollm_library_json))
    rng = random.Random(3)
    for _ in range(100):
        ids = [rng.randrange(smollm.vocab_size) for _ in range(30)] + [rng.randrange(200, 260) for _ in range(10)]
        rng.shuffle(ids)
        for skip in (True, False):
            theirs = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert smollm.decode(ids, skip_special=skip) == theirs


def test_threads_may_share_a_tokenizer(smollm: Tokenizer) -> None:
    texts = varied_texts(40)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm.encode, texts)) == [smollm.encode(text) for text in texts]


LONG_TEXT = "The quick brown fox jumps over the lazy dog. 12345 numbers. " * 5000


@pytest.mark.parametrize("is_chat", [False, True])
def test_other_threads_go_on_while_a_long_text_is_encoded(smollm: Tokenizer, *, is_chat: bool) -> None:
    """The event loop is such a thread. It counts naps: an encoder that held the lock would let it take two or three."""
    with ThreadPoolExecutor(1) as pool:
        if is_chat:
            encoded = pool.submit(smollm.encode_marked, "<|im_start|>" + LONG_TEXT, bytes(12 + len(LONG_TEXT)))
        else:
            encoded = pool.submit(smollm.encode, LONG_TEXT)
        num_naps = 0
        while not encoded.done():
            time.sleep(0.0005)
            num_naps += 1
        assert len(encoded.result()) > 10_000
    assert num_naps > 15
