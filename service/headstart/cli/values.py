"""What a flag's text may be, for argparse: an error then names the flag. Holds no state."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from headstart.errors import ConfigError

MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1
MAX_INT32 = 2**31 - 1


def whole(low: int, high: int) -> Callable[[str], int]:
    """Whole numbers from `low` to `high`, both included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} is not between {low} and {high}")
        return number

    return parse


def seconds(text: str) -> float:
    """A time that passes: more than 0, and finite."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} seconds; it must be more than 0 and finite")
    return number


def token_ids(text: str) -> list[int]:
    """Ids between commas; none for a blank text."""
    parse = whole(0, MAX_UINT32)
    return [parse(part) for part in text.split(",")] if text.strip() else []


def endpoint(text: str) -> str:
    """host:port, or a target of gRPC with a scheme, such as unix:/run/pod.sock."""
    host, _, port = text.rpartition(":")
    if "/" in text:
        return text
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    whole(1, 65_535)(port)
    return text


def words(text: str) -> str:
    """Any text. Bytes of a command line that are no UTF-8 arrive as characters that cannot be sent."""
    if not _is_utf8(text):
        raise argparse.ArgumentTypeError("not UTF-8 text")
    return text


def read_prompt(argument: str | None) -> str:
    """The argument, or for - and None what stdin holds. Raises ConfigError for bytes that are no UTF-8."""
    if argument is not None and argument != "-":
        return _told(argument, "the prompt")
    return read_stdin(sys.stdin.read)


def read_stdin(read: Callable[[], str]) -> str:
    """What `read` reads of stdin. Raises ConfigError for bytes that are no UTF-8."""
    try:
        text = read()
    except UnicodeDecodeError:
        raise ConfigError("stdin: not UTF-8 text") from None
    return _told(text, "stdin")


def _told(text: str, origin: str) -> str:
    if not _is_utf8(text):
        raise ConfigError(f"{origin}: not UTF-8 text")
    return text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
