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

_PAIR = re.compile(f"(.){MARK}|.", re.DOTALL)


class Content(str):
    """A string of plain characters, some of them from outside. Its own `str` value is the marked form."""

    __slots__ = ("is_outside", "plain")

    plain: str
    is_outside: bytes
    """One byte per character of `plain`, 1 where it came from outside."""

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
        plain = text.replace(MARK, "")
        return cls._make(plain, bytes(match.end() - match.start() - 1 for match in _PAIR.finditer(text)))

    @classmethod
    def _make(cls, plain: str, is_outside: bytes) -> Content:
        num_outside = is_outside.count(1)
        if num_outside == len(plain):
            marked = MARK.join(plain) + MARK if plain else ""
        elif num_outside == 0:
            marked = plain
        else:
            marked = "".join(c + MARK if o else c for c, o in zip(plain, is_outside, strict=True))
        made = super().__new__(cls, marked)
        made.plain = plain
        made.is_outside = is_outside
        return made

    def _cut(self, start: int, end: int) -> Content:
        return self._make(self.plain[start:end], self.is_outside[start:end])

    def _mapped(self, plain: str) -> Content:
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
        chosen = range(len(self.plain))[key]
        if isinstance(chosen, int):
            return self._cut(chosen, chosen + 1)
        step = slice(chosen.start, chosen.stop if chosen.stop >= 0 else None, chosen.step)
        return self._make(self.plain[step], self.is_outside[step])

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
        return self._mapped(self.plain.lower())

    def upper(self) -> Content:
        return self._mapped(self.plain.upper())

    def capitalize(self) -> Content:
        return self._mapped(self.plain.capitalize())

    def title(self) -> Content:
        return self._mapped(self.plain.title())

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Content:
        if not old:
            return self._mapped(self.plain.replace("", plain_text(new), count))
        pieces: list[str] = []
        for piece in self._pieces(self.plain.split(plain_text(old), int(count))):
            pieces += [new, piece]
        return joined(pieces[1:])

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(self.plain.split(_plain_chars(sep), maxsplit))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(self.plain.rsplit(_plain_chars(sep), maxsplit))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._pieces(self.plain.splitlines(keepends))

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, middle, after = self._pieces(self.plain.partition(plain_text(sep)))
        return before, middle, after

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, middle, after = self._pieces(self.plain.rpartition(plain_text(sep)))
        return before, middle, after

    def _pieces(self, pieces: Iterable[str]) -> list[str]:
        """The pieces of the plain text, which follow each other in it, as cuts of this one."""
        cuts: list[str] = []
        position = 0
        for piece in pieces:
            start = self.plain.index(piece, position)
            position = start + len(piece)
            cuts.append(self._cut(start, position))
        return cuts


def joined(pieces: Iterable[str]) -> Content:
    """The pieces in order, each character with its origin."""
    contents = [Content.of(piece) for piece in pieces]
    return Content._make("".join(c.plain for c in contents), b"".join(c.is_outside for c in contents))


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
