"""Finding stop strings in a text that arrives in pieces.

The leftmost match wins, then the longest. A match is decided as soon as no longer one, and none further left, can still
come; so the answer never depends on how the text was cut into pieces. Cost is linear in the text, whatever the stops.

`StopStrings` is immutable and shared by the choices of a request; a `StopSearch` belongs to one stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class StopMatch(NamedTuple):
    """Where a stop string lies, in characters from the start of the searched text."""

    start: int
    end: int


class StopStrings:
    """Aho-Corasick automaton over the stop strings (Aho and Corasick, 1975). State 0 is the empty prefix."""

    def __init__(self, stops: Iterable[str]) -> None:
        """Empty strings are ignored: they would match everywhere."""
        self.next: list[dict[str, int]] = [{}]
        self.match_length = [0]
        """By state: length of the longest stop that ends here, 0 for none."""
        depth = [0]
        for stop in stops:
            state = 0
            for char in stop:
                if char not in self.next[state]:
                    self.next[state][char] = len(self.next)
                    self.next.append({})
                    self.match_length.append(0)
                    depth.append(depth[state] + 1)
                state = self.next[state][char]
            self.match_length[state] = len(stop)
        self.fail = [0] * len(self.next)
        self.open_length = [length if self.next[i] else 0 for i, length in enumerate(depth)]
        """By state: length of the longest suffix that some stop strictly continues."""
        self._link()

    def _link(self) -> None:
        """Breadth first, so that a state's fail state is complete before the state itself."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            shorter = self.fail[state]
            self.match_length[state] = self.match_length[state] or self.match_length[shorter]
            self.open_length[state] = self.open_length[state] or self.open_length[shorter]
            for char, child in self.next[state].items():
                self.fail[child] = self.step(shorter, char)
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """The state of the longest suffix that is a prefix of some stop."""
        while state and char not in self.next[state]:
            state = self.fail[state]
        return self.next[state].get(char, 0)


class StopSearch:
    """One stream's position in the automaton. Mutable, owned by its decoder."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._position = 0
        self._best: StopMatch | None = None

    @property
    def num_held(self) -> int:
        """How many of the last characters may still turn out to be part of a match."""
        num_open = self._stops.open_length[self._state]
        return max(num_open, self._position - self._best.start) if self._best else num_open

    def push(self, text: str) -> StopMatch | None:
        """Search on. A match that is returned is final; nothing must be pushed after it."""
        stops = self._stops
        for char in text:
            self._state = stops.step(self._state, char)
            self._position += 1
            length = stops.match_length[self._state]
            if length:
                self._keep_better(StopMatch(self._position - length, self._position))
            if self._best and self._position - stops.open_length[self._state] > self._best.start:
                return self._best
        return None

    def finish(self) -> StopMatch | None:
        """The text has ended: the match that was waiting for a better one, if any."""
        return self._best

    def _keep_better(self, match: StopMatch) -> None:
        # Matches come in order of their ends, so of two with one start the later is the longer.
        if self._best is None or match.start <= self._best.start:
            self._best = match
