"""Text to token ids and back, for one model: what the pod runs and what the operator runs must be the same object.

Encoding never yields a control token for text from outside: those are the tokens flagged special, the end-of-sequence
tokens, and added tokens that the chat template writes. It does not know chats (`chat.py` marks which characters came
from outside) nor streams (`detokenizer.py`). A `Tokenizer` is immutable and may be used from any thread; others run
while it encodes, because the library gives the interpreter lock away when it gets a batch, and only then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE

from headstart.errors import InvalidRequestError, ModelError
from headstart.text.sources import Document, directory_document, gguf_document
from headstart.text.token_bytes import TokenBytes, nodes

_HOLE = "\ud800"
"""Stands for a character from outside while control tokens are searched. Text from outside cannot hold it."""

_BPE_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)


class Tokenizer:
    """One model's tokenizer, special ids and chat template, all of it made from one document."""

    def __init__(self, document: Document) -> None:
        """`document` is described in `sources.py`. Raises ModelError when it cannot work."""
        raw = document["tokenizer"]
        written = _canonical(raw)
        self._document = _document_bytes(document, written)
        self.template: str | None = document["template"]
        self.tool_template: str | None = document["tool_template"]
        self.special_tokens: dict[str, str] = document["special_tokens"]
        self.eos_token_ids = frozenset[int](document["eos_token_ids"])
        self.bos_token_id: int | None = document["bos_token_id"]
        self.add_bos: bool = document["add_bos"]
        added = {entry["id"]: entry for entry in raw.get("added_tokens") or ()}
        special = {i for i, entry in added.items() if entry["special"]}
        self.special_ids = frozenset(special | self.eos_token_ids)
        """Ids that give no text by default."""
        templates = (self.template or "") + (self.tool_template or "")
        named = {i for i, entry in added.items() if entry["content"] in templates}
        self.control_ids = frozenset(self.special_ids | named)
        """Ids that text from outside never becomes."""
        self._control = [entry for i, entry in added.items() if i in self.control_ids]
        self._markup, self._plain = _library_tokenizers(raw, written, self.control_ids)
        self._prefixes_first_run_only = any(
            node.get("prepend_scheme") == "first" for node in nodes(raw.get("pre_tokenizer"))
        )
        self._unknown_id = self._markup.token_to_id(raw["model"].get("unk_token") or "")
        self.token_bytes = TokenBytes(raw, self._markup)
        """The raw bytes of one token; empty for an id that the tokenizer does not know."""
        self.strips_leading_space = self.token_bytes.strips_leading_space
        self.vocab_size = self.token_bytes.size

    @classmethod
    def from_document(cls, content: bytes) -> Tokenizer:
        """The inverse of `to_document`. Raises ModelError for bytes that are no such document."""
        try:
            return cls(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"this is no tokenizer document: {error!r}") from error

    def to_document(self) -> bytes:
        """Canonical JSON: equal bytes mean equal tokenizers and templates."""
        return self._document

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the document, hex."""
        return sha256(self._document).hexdigest()

    def encode(self, text: str, *, allow_special: bool = False, field: str = "text") -> list[int]:
        """Token ids of `text`, after the beginning-of-sequence token where the model wants one.

        Control tokens that are spelt in the text become ordinary text unless `allow_special`. Raises
        InvalidRequestError, naming `field`, for a NUL or a lone surrogate.
        """
        check_text(text, field)
        encode = self._encode_markup if allow_special else self._encode_plain
        ids = encode(text)
        if self.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def encode_marked(self, text: str, is_outside: bytes) -> list[int]:
        """Token ids of a rendered chat; control tokens come only from characters that the template wrote.

        `is_outside` has one byte per character, 1 where it came from outside. No beginning-of-sequence token is added:
        the template writes it.
        """
        (encoding,) = self._markup.encode_batch([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        control = (i for i, token_id in enumerate(ids) if token_id in self.control_ids)
        if not any(_touches_outside(text, is_outside, *encoding.token_to_chars(i)) for i in control):
            return ids
        return self._encode_runs(text, is_outside)

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of the ids alone. Bytes that are no UTF-8 give one U+FFFD per maximal broken part."""
        skipped = self.special_ids if skip_special else frozenset()
        content = b"".join(self.token_bytes(i) for i in token_ids if i not in skipped)
        text = content.decode("utf-8", "replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def _encode_markup(self, text: str) -> list[int]:
        return _encode(self._markup, text)

    def _encode_plain(self, text: str) -> list[int]:
        ids = _encode(self._plain, text)
        if self.control_ids.isdisjoint(ids) or all(i == self._unknown_id for i in self.control_ids.intersection(ids)):
            return ids
        raise InvalidRequestError("text", "it holds a control token that this tokenizer cannot spell as plain text")

    def _encode_runs(self, text: str, is_outside: bytes) -> list[int]:
        """Only control tokens that the template wrote are hard edges; the runs between them are plain text."""
        ids: list[int] = []
        position = 0
        for start, end, token_id in self._markup_tokens(text, is_outside):
            ids += self._encode_run(text[position:start], is_first=position == 0)
            ids.append(token_id)
            position = end
        return ids + self._encode_run(text[position:], is_first=position == 0)

    def _encode_run(self, run: str, *, is_first: bool) -> list[int]:
        if not run:
            return []
        if is_first or not self._prefixes_first_run_only:
            return self._encode_plain(run)
        # Such a tokenizer puts a space before the first run only: encode this one behind a character, then drop that.
        lead = self._encode_plain("\n")
        return self._encode_plain("\n" + run)[len(lead) :]

    def _markup_tokens(self, text: str, is_outside: bytes) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each control token that the template wrote, with the spaces that it swallows."""
        by_content = {entry["content"]: entry for entry in self._control}
        pattern = "|".join(re.escape(content) for content in sorted(by_content, key=len, reverse=True))
        markup = "".join(_HOLE if outside else char for char, outside in zip(text, is_outside, strict=True))
        floor = 0
        for match in re.finditer(pattern, markup):
            entry = by_content[match.group()]
            start, end = match.span()
            while entry.get("lstrip") and start > floor and text[start - 1].isspace():
                start -= 1
            while entry.get("rstrip") and end < len(text) and text[end].isspace():
                end += 1
            floor = end
            yield start, end, entry["id"]


def load_directory(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model directory. Raises ModelError."""
    return Tokenizer(directory_document(path))


def load_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata (key to plain value) describes. Raises ModelError."""
    return Tokenizer(gguf_document(metadata))


def check_text(text: str, field: str) -> None:
    """Raise InvalidRequestError, naming `field`, for text that no tokenizer or wire can carry."""
    if "\0" in text:
        raise InvalidRequestError(field, "it holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(field, "it holds a lone surrogate: send valid Unicode") from None


def _encode(library: Any, text: str) -> list[int]:
    """Ids without offsets. In a batch of one, because a lone text is encoded under the interpreter lock."""
    (encoding,) = library.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _touches_outside(text: str, is_outside: bytes, start: int, end: int) -> bool:
    # A control token may swallow the spaces around it; those may well be the content's.
    return any(is_outside[i] and not text[i].isspace() for i in range(start, end))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _document_bytes(document: Document, tokenizer: str) -> bytes:
    """The document as canonical JSON, of which the `tokenizer`, nearly all of it, is written already."""
    parts = (
        f"{json.dumps(key)}:{tokenizer if key == 'tokenizer' else _canonical(document[key])}"
        for key in sorted(document)
    )
    return f"{{{','.join(parts)}}}".encode()


def _library_tokenizers(raw: Mapping[str, Any], written: str, control_ids: frozenset[int]) -> tuple[Any, Any]:
    """Two objects of one vocabulary: the first reads control tokens in text, the second spells them out."""
    added = raw.get("added_tokens") or ()
    try:
        markup = _of_vocabulary(raw) if _is_plain_bpe(raw) else LibraryTokenizer.from_str(written)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the tokenizer cannot be built: {error}") from error
    plain = LibraryTokenizer(markup.model)  # one vocabulary in memory, and half the time to load
    if markup.normalizer is not None:
        plain.normalizer = markup.normalizer
    if markup.pre_tokenizer is not None:
        plain.pre_tokenizer = markup.pre_tokenizer
    _add_tokens(plain, added, special_ids=control_ids)
    plain.encode_special_tokens = True
    return markup, plain


def _is_plain_bpe(raw: Mapping[str, Any]) -> bool:
    """Whether `_of_vocabulary` makes of it what the library reads in its text."""
    model = raw["model"]
    vocabulary, merges = model.get("vocab"), model.get("merges")
    return (
        model.get("type") == "BPE"
        and model.keys() <= {"type", "vocab", "merges", *_BPE_OPTIONS}
        and isinstance(vocabulary, Mapping)
        and isinstance(merges, list)
        and all(type(pair) is list and len(pair) == 2 for pair in merges)
        and all(vocabulary.get(entry["content"]) == entry["id"] for entry in raw.get("added_tokens") or ())
    )


def _of_vocabulary(raw: Mapping[str, Any]) -> Any:
    """Without text between: that takes the library twice the time, and holds up a pod that imports its servers."""
    model = raw["model"]
    shell = {**raw, "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    library = LibraryTokenizer.from_str(_canonical(shell))
    options = {name: model[name] for name in _BPE_OPTIONS if model.get(name) is not None}
    library.model = BPE(model["vocab"], list(map(tuple, model["merges"])), **options)
    added = raw.get("added_tokens") or ()
    _add_tokens(library, added, special_ids=frozenset(entry["id"] for entry in added if entry["special"]))
    return library


def _add_tokens(library: Any, added: Iterable[Mapping[str, Any]], *, special_ids: frozenset[int]) -> None:
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized")
    for entry in added:
        library.add_tokens([AddedToken(**{flag: entry[flag] for flag in flags}, special=entry["id"] in special_ids)])
