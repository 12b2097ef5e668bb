"""Where a tokenizer comes from: a Hugging Face directory or GGUF metadata, read into one document.

The document is plain JSON and all that a tokenizer is: `{tokenizer, template, tool_template, special_tokens,
eos_token_ids, bos_token_id, add_bos}`, with `tokenizer` in the format of `tokenizer.json`. Nothing here encodes text,
and nothing keeps state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headstart.errors import ModelError

Document = dict[str, Any]

_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
"""The special tokens that a chat template can name."""

_GGUF_UNKNOWN, _GGUF_CONTROL, _GGUF_USER_DEFINED = 2, 3, 4
"""Values of `tokenizer.ggml.token_type` (llama.h, enum llama_token_type)."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"llama-bpe": _WORDS + r"|\p{N}{1,3}" + _REST, "qwen2": _WORDS + r"|\p{N}" + _REST}
"""How these families cut text into words before BPE, as their published `tokenizer.json` do."""

_PRE_NAMES = {"": "gpt-2", "default": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


def directory_document(path: Path) -> Document:
    """Read `tokenizer.json` and the files around it. Raises ModelError when that file is missing or broken."""
    if not (path / "tokenizer.json").is_file():
        raise ModelError("the model directory has no tokenizer.json: save its tokenizer in the fast format first")
    config = _read_json(path / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(path / "special_tokens_map.json")) | _special_tokens(config)
    raw = _read_json(path / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(json.dumps(raw))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"tokenizer.json cannot be read: {error}") from error
    template, tool_template = _directory_templates(path, config)
    bos_id = _id_of(tokenizer, special_tokens.get("bos_token"))
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        add_bos = bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id]
    eos_ids = {_id_of(tokenizer, special_tokens.get("eos_token"))}
    for name in ("generation_config.json", "config.json"):
        eos_ids.update(_as_list(_read_json(path / name).get("eos_token_id")))
    return {
        "tokenizer": raw | {"truncation": None, "padding": None},
        "template": template,
        "tool_template": tool_template,
        "special_tokens": special_tokens,
        "eos_token_ids": sorted(i for i in eos_ids if i is not None),
        "bos_token_id": bos_id,
        "add_bos": bool(add_bos) and bos_id is not None,
    }


def gguf_document(metadata: Mapping[str, Any]) -> Document:
    """Build the tokenizer that the `tokenizer.*` keys of a GGUF file describe.

    Known are the models "gpt2" (byte-level BPE) with the pre-tokenizers gpt-2, smollm, llama-bpe and qwen2, and "llama"
    (SentencePiece BPE with byte fallback). Raises ModelError for any other, naming it.
    """
    model = str(metadata.get("tokenizer.ggml.model", ""))
    if "tokenizer.ggml.tokens" not in metadata:
        raise ModelError("the GGUF file has no tokenizer.ggml.tokens")
    tokens = [str(token) for token in metadata["tokenizer.ggml.tokens"]]
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    pre = _PRE_NAMES.get(pre, pre)
    if model == "gpt2":
        merges = [str(merge).split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]]
        tokenizer = _byte_level(pre)
    elif model == "llama":
        merges = _merges_of_scores(tokens, metadata)
        tokenizer = _sentencepiece(tokens, metadata)
    else:
        raise ModelError(f"the GGUF tokenizer model {model!r} is not supported: use a gpt2 or llama one")
    raw = json.loads(tokenizer.to_str())
    raw["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    raw["added_tokens"] = _added_tokens(tokens, metadata.get("tokenizer.ggml.token_type") or ())
    eos_ids = {_gguf_id(metadata, name) for name in ("eos", "eot", "eom")}
    bos_id = _gguf_id(metadata, "bos")
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or pre == "llama-bpe"))
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {variable: _gguf_id(metadata, name) for name, variable in names.items()}
    return {
        "tokenizer": raw,
        "template": metadata.get("tokenizer.chat_template"),
        "tool_template": metadata.get("tokenizer.chat_template.tool_use"),
        "special_tokens": {variable: tokens[i] for variable, i in ids.items() if i is not None},
        "eos_token_ids": sorted(i for i in eos_ids if i is not None),
        "bos_token_id": bos_id,
        "add_bos": add_bos and bos_id is not None,
    }


def _byte_level(pre: str) -> Tokenizer:
    """All but the vocabulary: it would only be read into the library and out again."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated", invert=False)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif pre == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        raise ModelError(f"the GGUF pre-tokenizer {pre!r} is not supported: use a model directory instead")
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: list[str], metadata: Mapping[str, Any]) -> Tokenizer:
    """All but the vocabulary, as in `_byte_level`."""
    unknown = _gguf_id(metadata, "unknown")
    unk_token = None if unknown is None else tokens[unknown]
    tokenizer = Tokenizer(models.BPE(unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _merges_of_scores(tokens: list[str], metadata: Mapping[str, Any]) -> list[list[str]]:
    """SentencePiece merges the pair whose whole has the best score; BPE wants that as an ordered list of pairs."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError("the GGUF tokenizer model 'llama' needs one score per token")
    ids = {token: i for i, token in enumerate(tokens)}
    ranked = []
    for i, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-float(scores[i]), ids[left], ids[right], left, right))
    ranked.sort()
    return [[left, right] for *_, left, right in ranked]


def _added_tokens(tokens: list[str], types: Iterable[Any]) -> list[dict[str, Any]]:
    """The entries of `tokenizer.json` for tokens that are found in a text before anything else."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = frozenset((_GGUF_CONTROL, _GGUF_UNKNOWN))
    added = special | {_GGUF_USER_DEFINED}
    return [
        {"id": i, "content": token, "special": kind in special} | plain
        for i, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in added
    ]


def _gguf_id(metadata: Mapping[str, Any], name: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return None if value is None else int(value)


def _directory_templates(path: Path, config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The default template and the one for chats with tools. A file of its own wins over the tokenizer's config."""
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8"), None
    template = _read_json(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        return by_name.get("default"), by_name.get("tool_use")
    return template, None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Variable to text; a token may be spelt as a string or as an object with `content`."""
    found = {}
    for name in _VARIABLES:
        token = config.get(name)
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _id_of(tokenizer: Tokenizer, token: str | None) -> int | None:
    return None if token is None else tokenizer.token_to_id(token)


def _as_list(value: Any) -> list[int | None]:
    return list(value) if isinstance(value, list) else [value]


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} is no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} must hold a JSON object")
    return content
