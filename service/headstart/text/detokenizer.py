"""Token ids in, text out: one machine for a stream and for a unary answer.

Bytes are gathered until they make whole characters, stop strings are searched in the text, and **text leaves
together with its tokens**: the text of a delta is exactly the text of its tokens. So a token whose last character is
not complete, or whose text may still begin a stop string, waits with all its text; and whoever continues a stream
from the tokens that it has received has lost and doubled nothing. Only the delta that ends at a stop string cuts its
text short.

The joined deltas equal the one-shot `Tokenizer.decode` of all ids, however the ids were grouped. A token costs the
same whatever came before it.

It knows nothing of requests, eos or limits: the caller says when a push is the last. A `StreamDecoder` is mutable and
belongs to one choice of one request.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headstart.text.stops import StopMatch, StopSearch, StopStrings
from headstart.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What may be delivered now.

    `token_ids` are the tokens whose text is wholly delivered with `text`, in order, `num_tokens` their number: the
    caller takes as many logprobs from its own queue. `stop_string` is set once, in the delta that ends at it; its
    tokens end with the one that completed the match, and later ones are dropped.
    """

    text: str
    token_ids: tuple[int, ...]
    num_tokens: int
    stop_string: str | None


_NOTHING = TextDelta("", (), 0, None)


class StreamDecoder:
    """The text of one choice. Two verbs: `prime` before anything else, then `push`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_strings: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special: bool = True,
    ) -> None:
        """Stop strings are searched only after the text of the first `min_tokens` tokens, which is never cut.

        Special tokens give no text unless `skip_special` is false; then a stop string may match one.
        """
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._search = StopSearch(StopStrings(stop_strings)) if any(stop_strings) else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.strips_leading_space
        self._drops_replacement = False
        self._num_tokens = 0
        self._num_chars = 0
        """Whole characters decoded so far, delivered or not."""
        self._num_delivered = 0
        self._held: list[str] = []
        """The characters not delivered, in pieces, so that a long push stays linear."""
        self._waiting: deque[tuple[int, int]] = deque()
        """Undelivered (token id, number of characters that must be delivered with it and before it)."""
        self._search_start = 0
        """Characters before this position are no part of any match."""
        self._is_done = False

    def prime(self, token_ids: Iterable[int]) -> None:
        """Replay tokens that were delivered before. They count for `min_tokens`; their text does not come out again.

        No stop string matches in them or across their end: text that could have begun one was not delivered.
        """
        for token_id in token_ids:
            self._search_start = max(self._search_start, self._take(token_id)[0])
        # A character that is still open had been given up as U+FFFD when its tokens were delivered. Should the next
        # bytes complete it after all, the caller has cut its tokens inside of it, and gets it whole.
        self._drops_replacement = self._is_open
        self._waiting.clear()
        self._held.clear()
        self._num_delivered = self._num_chars

    def push(self, token_ids: Iterable[int], *, is_last: bool = False) -> TextDelta:
        """Take the next tokens of the stream and return what may leave.

        With `is_last` everything leaves: a character that was never completed becomes one U+FFFD, and a stop string
        that was waiting for a longer one matches. After a match or a last push, every further delta is empty.
        """
        if self._is_done:
            return _NOTHING
        for token_id in token_ids:
            end, text = self._take(token_id)
            if self._num_tokens <= self._min_tokens:
                self._search_start = end
            elif match := self._find_stop(text):
                return self._stop_at(match)
        if is_last:
            return self._finish()
        num_searching = self._search.num_held if self._search else 0
        return self._release(self._num_chars - num_searching)

    @property
    def _is_open(self) -> bool:
        """Whether the first bytes of a character wait for the rest."""
        return bool(self._decoder.getstate()[0])

    def _take(self, token_id: int) -> tuple[int, str]:
        """Decode one token. Returns the number of characters with which its text is complete, and the new ones."""
        text = ""
        if token_id not in self._skipped:
            text = self._append(self._decoder.decode(self._token_bytes(token_id)))
        self._num_tokens += 1
        # Bytes that wait in the decoder become one character, whatever follows: the token is complete with it.
        end = self._num_chars + self._is_open
        self._waiting.append((token_id, end))
        return end, text

    def _append(self, text: str) -> str:
        if text and self._drops_replacement:
            self._drops_replacement = False
            if text[0] == "\ufffd":
                text = text[1:]
                self._num_chars += 1
                self._num_delivered += 1
        if text and self._drops_space:
            self._drops_space = False
            text = text.removeprefix(" ")
        if text:
            self._held.append(text)
            self._num_chars += len(text)
        return text

    def _find_stop(self, text: str) -> StopMatch | None:
        """Search in the last characters, which are `text`."""
        if self._search is None or not text:
            return None
        start = self._num_chars - len(text)
        return self._search.push(text[max(0, self._search_start - start) :])

    def _finish(self) -> TextDelta:
        text = self._append(self._decoder.decode(b"", final=True))
        match = None
        if self._search is not None and self._num_tokens > self._min_tokens:
            match = self._find_stop(text) or self._search.finish()
        if match is not None:
            return self._stop_at(match)
        self._is_done = True
        return self._release(self._num_chars)

    def _stop_at(self, match: StopMatch) -> TextDelta:
        """The last delta: text up to the match, tokens up to the one that completed it."""
        self._is_done = True
        held = "".join(self._held)
        start, end = (self._search_start + position - self._num_delivered for position in match)
        token_ids = []
        for token_id, token_end in self._waiting:
            token_ids.append(token_id)
            if token_end >= end + self._num_delivered:
                break
        text = held[: end if self._include_stop else start]
        return TextDelta(text, tuple(token_ids), len(token_ids), held[start:end])

    def _release(self, limit: int) -> TextDelta:
        """Deliver the tokens whose text ends at or before character `limit`."""
        token_ids = []
        end = self._num_delivered
        while self._waiting and self._waiting[0][1] <= limit:
            token_id, end = self._waiting.popleft()
            token_ids.append(token_id)
        if not token_ids:
            return _NOTHING
        text = ""
        if end > self._num_delivered:
            held = "".join(self._held)
            text = held[: end - self._num_delivered]
            self._held = [held[len(text) :]]
            self._num_delivered = end
        return TextDelta(text, tuple(token_ids), len(token_ids), None)
