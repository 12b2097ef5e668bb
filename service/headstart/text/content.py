"""Strings that remember which of their characters came from outside, through everything a chat template does to them.

In memory each outside character is followed by a mark, a code point that no valid text holds. So text that loses its
class on the way (a join in C, a format, JSON) keeps its marks, and `Content.of` restores it; and whatever a template
cuts, replaces or glues, a control token cannot arise from outside characters, because its characters never stand
together without marks. Methods act on the plain text, so templates see what they would see without any of this.

Nothing here knows templates or tokens. Values are immutable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

MARK = "\udfff"
"""A lone surrogate: input that holds one is refused, so nobody outside can write a mark."""

_RUNS_OF_MARKED = re.compile(f"(?:[^{MARK}]{MARK})+|(?:[^{MARK}](?!{MARK}))+")
_RUNS_OF_ORIGIN = re.compile(rb"\x01+|\x00+")


class Content(str):
    """A string of plain characters, some of them from outside. Its own `str` value is the marked form."""

    __slots__ = ("is_outside", "plain")

    plain: str
    is_outside: bytes
    """One byte per character of `plain`, 1 where it came from outside."""

    def __new__(cls, text: str = "") -> Content:
        return cls.of(text)

    @classmethod
    def outside(cls, text: str) -> Content:
        """All of `text` came from outside."""
        return cls._make(text, b"\1" * len(text))

    @classmethod
    def of(cls, text: str) -> Content:
        """Read marks back from a text that has lost its class."""
        if isinstance(text, Content):
            return text
        if MARK not in text:
            return cls._make(text, bytes(len(text)))
        runs = (match.group() for match in _RUNS_OF_MARKED.finditer(text))
        origins = (b"\1" * (len(run) // 2) if MARK in run else bytes(len(run)) for run in runs)
        return cls._make(text.replace(MARK, ""), b"".join(origins), text)

    @classmethod
    def _make(cls, plain: str, is_outside: bytes, marked: str | None = None) -> Content:
        if marked is None:
            runs = (match.span() for match in _RUNS_OF_ORIGIN.finditer(is_outside))
            marked = "".join(plain[a:b].replace("", MARK)[1:] if is_outside[a] else plain[a:b] for a, b in runs)
        made = str.__new__(cls, marked)
        made.plain = plain
        made.is_outside = is_outside
        return made

    def _cut(self, start: int, end: int) -> Content:
        return self._make(self.plain[start:end], self.is_outside[start:end])

    def changed(self, plain: str) -> Content:
        """The same characters changed one by one. When their number changes, all of them count as from outside."""
        kept = self.is_outside if len(plain) == len(self.plain) else b"\1" * len(plain)
        return self._make(plain, kept)

    # Reading: as the plain text would answer.

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return repr(self.plain)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.plain == plain_text(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: str) -> bool:
        return self.plain < plain_text(other)

    def __gt__(self, other: str) -> bool:
        return self.plain > plain_text(other)

    def __len__(self) -> int:
        return len(self.plain)

    def __contains__(self, part: object) -> bool:
        return isinstance(part, str) and plain_text(part) in self.plain

    def __iter__(self) -> Iterator[str]:
        return (self._cut(i, i + 1) for i in range(len(self.plain)))

    def __getitem__(self, key: SupportsIndex | slice) -> Content:
        if isinstance(key, slice):
            return self._make(self.plain[key], self.is_outside[key])
        position = range(len(self.plain))[key]
        return self._cut(position, position + 1)

    def startswith(self, prefix: Any, *bounds: Any) -> bool:
        return self.plain.startswith(plain_value(prefix), *bounds)

    def endswith(self, suffix: Any, *bounds: Any) -> bool:
        return self.plain.endswith(plain_value(suffix), *bounds)

    def find(self, part: str, *bounds: Any) -> int:
        return self.plain.find(plain_text(part), *bounds)

    def rfind(self, part: str, *bounds: Any) -> int:
        return self.plain.rfind(plain_text(part), *bounds)

    def index(self, part: str, *bounds: Any) -> int:
        return self.plain.index(plain_text(part), *bounds)

    def count(self, part: str, *bounds: Any) -> int:
        return self.plain.count(plain_text(part), *bounds)

    def isspace(self) -> bool:
        return self.plain.isspace()

    def isdigit(self) -> bool:
        return self.plain.isdigit()

    # Making new text: every character keeps where it came from.

    def __add__(self, other: str) -> Content:
        return joined((self, other))

    def __radd__(self, other: str) -> Content:
        return joined((other, self))

    def strip(self, chars: str | None = None) -> Content:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Content:
        return self._cut(len(self.plain) - len(self.plain.lstrip(_plain_chars(chars))), len(self.plain))

    def rstrip(self, chars: str | None = None) -> Content:
        return self._cut(0, len(self.plain.rstrip(_plain_chars(chars))))

    def removeprefix(self, prefix: str) -> Content:
        return self._cut(len(self.plain) - len(self.plain.removeprefix(plain_text(prefix))), len(self.plain))

    def removesuffix(self, suffix: str) -> Content:
        return self._cut(0, len(self.plain.removesuffix(plain_text(suffix))))

    def lower(self) -> Content:
        return self.changed(self.plain.lower())

    def upper(self) -> Content:
        return self.changed(self.plain.upper())

    def capitalize(self) -> Content:
        return self.changed(self.plain.capitalize())

    def title(self) -> Content:
        return self.changed(self.plain.title())

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Content:
        if not old:
            return self.changed(self.plain.replace("", plain_text(new), count))
        pieces: list[str] = []
        old = plain_text(old)
        for piece in self._pieces(self.plain.split(old, int(count)), len(old)):
            pieces += [new, piece]
        return joined(pieces[1:])

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = _plain_chars(sep)
        return self._pieces(self.plain.split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = _plain_chars(sep)
        return self._pieces(self.plain.rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._pieces(self.plain.splitlines(keepends), 0)

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, middle, after = self._pieces(self.plain.partition(plain_text(sep)), 0)
        return before, middle, after

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, middle, after = self._pieces(self.plain.rpartition(plain_text(sep)), 0)
        return before, middle, after

    def _pieces(self, pieces: Iterable[str], gap: int) -> list[str]:
        """The pieces of the plain text as cuts of this one: in order, `gap` or more characters between two of them."""
        cuts: list[str] = []
        position = 0
        for piece in pieces:
            start = self.plain.index(piece, position)
            cuts.append(self._cut(start, start + len(piece)))
            position = start + len(piece) + gap
        return cuts


def joined(pieces: Iterable[str]) -> Content:
    """The pieces in order, each character with its origin."""
    contents = [Content.of(piece) for piece in pieces]
    plain = "".join(content.plain for content in contents)
    return Content._make(plain, b"".join(content.is_outside for content in contents), "".join(contents))


def plain_text(text: str) -> str:
    """What the characters are, without where they came from."""
    return text.plain if isinstance(text, Content) else text.replace(MARK, "")


def plain_value(value: Any) -> Any:
    """`plain_text` of a string or of a tuple of strings."""
    return tuple(map(plain_text, value)) if isinstance(value, tuple) else plain_text(value)


def outside_value(value: Any, check: Callable[[str], None]) -> Any:
    """A JSON value with each of its strings, keys too, as outside content. `check` sees each string first."""
    if isinstance(value, str):
        check(value)
        return Content.outside(value)
    if isinstance(value, Mapping):
        return {outside_value(key, check): outside_value(item, check) for key, item in value.items()}
    if isinstance(value, list):
        return [outside_value(item, check) for item in value]
    return value


def _plain_chars(chars: str | None) -> str | None:
    return None if chars is None else plain_text(chars)
