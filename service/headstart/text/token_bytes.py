"""The bytes of a token, from how its tokenizer spells it.

A token is spelt when it is first asked for: the start of a pod wants a few of a hundred thousand. Knows no text.
Owns what it has spelt; may be used from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headstart.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Called with a token id, gives its bytes; empty for an id that the tokenizer does not have."""

    def __init__(self, raw: Mapping[str, Any], library: Any) -> None:
        """`raw` is a `tokenizer.json`, `library` what was built of it. Raises ModelError for an unknown decoder."""
        self.strips_leading_space, self._spell = _spelling(raw.get("decoder"))
        self._library = library
        self._added = {entry["id"] for entry in raw.get("added_tokens") or ()}
        self._spelt: dict[int, bytes] = {}
        self.size = max(_last_id(raw["model"]), max(self._added, default=-1)) + 1
        """One more than the largest id."""
        self.longest = self._longest(raw)
        """No token has more bytes than this, and hardly fewer has the longest."""

    def __call__(self, token_id: int) -> bytes:
        spelt = self._spelt.get(token_id)
        if spelt is not None:
            return spelt
        token: str | None = self._library.id_to_token(token_id) if 0 <= token_id < self.size else None
        if token is None:  # beyond the ids, or a hole among them
            return b""
        spelt = self._spelt[token_id] = self._spell(token, token_id in self._added)
        return spelt

    def _longest(self, raw: Mapping[str, Any]) -> int:
        """Without spelling them all. In byte-level letters a character is a byte; else UTF-8 is never too short."""
        vocabulary = raw["model"].get("vocab") or ()
        ids = vocabulary if isinstance(vocabulary, Mapping) else {entry[0]: i for i, entry in enumerate(vocabulary)}
        tokens = [token for token, token_id in ids.items() if token_id not in self._added]
        added = [len(entry["content"].encode()) for entry in raw.get("added_tokens") or ()]
        is_by_letter = self._spell is _spell_byte_level and set("".join(tokens)) <= _LETTERS
        return max([*map(len, tokens if is_by_letter else map(str.encode, tokens)), *added, 1])


def nodes(part: Any) -> Iterator[Mapping[str, Any]]:
    """A component of `tokenizer.json` and, for a sequence, its parts."""
    if isinstance(part, Mapping):
        yield part
        for name in ("decoders", "pretokenizers", "normalizers"):
            for child in part.get(name, ()):
                yield from nodes(child)


def _spelling(decoder: Any) -> tuple[bool, Callable[[str, bool], bytes]]:
    """Whether a decoded text loses one leading space, and what spells a token, given whether it was added."""
    parts = list(nodes(decoder))
    kinds = {node["type"] for node in parts}
    if "ByteLevel" in kinds:
        return False, _spell_byte_level
    if not kinds & {"ByteFallback", "Metaspace"}:
        raise ModelError(f"the tokenizer's decoder {sorted(kinds)} is not supported: use a BPE or SentencePiece one")
    strips = any(node["type"] == "Strip" and node.get("start") for node in parts)
    prepends = any(node["type"] == "Metaspace" and node.get("prepend_scheme") != "never" for node in parts)
    return strips or prepends, _spell_piece


def _spell_byte_level(token: str, is_added: bool) -> bytes:
    try:
        return token.encode() if is_added else token.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:  # not written in the alphabet: the token is its own text
        return token.encode()


def _spell_piece(token: str, is_added: bool) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return (token if is_added else token.replace("▁", " ")).encode()


def _byte_level_alphabet() -> dict[int, int]:
    """Code point to byte, as GPT-2 writes bytes: printable Latin-1 as itself, the rest from U+0100 on, in order.

    Latin-1 characters that stand for no byte map out of Latin-1.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return dict.fromkeys(others, 0xFFFF) | {0x100 + i: byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
_LETTERS = frozenset(chr(code) for code in range(0x180) if _BYTE_LEVEL.get(code, code) < 0x100)


def _last_id(model: Mapping[str, Any]) -> int:
    """Of the `model` of a `tokenizer.json`, whose vocabulary names ids or lists them in order."""
    vocabulary = model.get("vocab") or ()
    return max(vocabulary.values(), default=-1) if isinstance(vocabulary, Mapping) else len(vocabulary) - 1
