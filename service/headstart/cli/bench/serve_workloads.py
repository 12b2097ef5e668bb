"""What `headstart bench serve` asks for: the requests of each workload, as lengths and as token ids drawn from a seed.

    W1  one stream         32 -> 256
    W2  throughput         16 at once, 128 -> 128
    W3  prefill            8 at once, 1024 -> 1
    W4c shared prefix      32 at once, 1024 shared + 64 of their own -> 16, nothing cached
    W4w shared prefix      the same after one request with that prefix
    W5  mixed              8 decoders, 128 -> 160; when each has 16 tokens a prompt of 4096 (-> 8) arrives

Prompts share nothing but what W4 shares on purpose. Standard library only: what measures another engine in that
engine's own environment uses this module too. Holds no state.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

WORKLOADS = {
    "W1": "one stream, 32 -> 256",
    "W2": "16 at once, 128 -> 128",
    "W3": "8 at once, 1024 -> 1",
    "W4c": "32 at once, 1024 shared + 64 -> 16, cold",
    "W4w": "the same with the shared part cached",
    "W5": "8 decode, 128 -> 160, when 4096 -> 8 comes",
}
"""Name -> one line about it."""

DEFAULT_TOKEN_IDS = range(1000, 49_000)
"""No special tokens of the built-in model."""

LATE_AFTER_TOKENS = 16
"""A late request comes once every other one has so many tokens."""


class Ask(NamedTuple):
    """One request: greedy, and not ended by the model. Its lengths are in tokens."""

    name: str
    prompt: list[int]
    num_output: int
    is_late: bool = False


class Traffic(NamedTuple):
    """`priming` requests are run one by one before the clock starts."""

    priming: list[Ask]
    asks: list[Ask]


def build(workload: str, seed: str, token_ids: Sequence[int] = DEFAULT_TOKEN_IDS) -> Traffic:
    """The requests of `workload`. Another seed gives prompts that share nothing with these."""
    drawer = _Drawer(f"{workload}/{seed}", token_ids)
    if workload == "W1":
        return Traffic([], drawer.asks(1, 32, 256))
    if workload == "W2":
        return Traffic([], drawer.asks(16, 128, 128))
    if workload == "W3":
        return Traffic([], drawer.asks(8, 1024, 1))
    if workload in ("W4c", "W4w"):
        return _shared(drawer, is_warm=workload == "W4w")
    if workload == "W5":
        return Traffic([], [*drawer.asks(8, 128, 160), drawer.ask("long", 4096, 8)._replace(is_late=True)])
    raise ValueError(f"workload: {workload!r} is not one of {', '.join(WORKLOADS)}")


def warm_up(seed: str, token_ids: Sequence[int] = DEFAULT_TOKEN_IDS) -> Traffic:
    """A few short requests, so that no workload is the first to touch anything."""
    return Traffic([], _Drawer(f"warm/{seed}", token_ids).asks(4, 128, 8))


def longest_request(workload: str) -> int:
    """Tokens of the longest one, output too: what a server's context must hold."""
    traffic = build(workload, "")
    return max(len(ask.prompt) + ask.num_output for ask in traffic.asks)


class _Drawer:
    """Draws prompts from one seed."""

    def __init__(self, seed: str, token_ids: Sequence[int]) -> None:
        self._seed = seed
        self._token_ids = token_ids

    def ids(self, name: str, num_tokens: int) -> list[int]:
        return random.Random(f"{self._seed}/{name}").choices(self._token_ids, k=num_tokens)

    def ask(self, name: str, num_prompt: int, num_output: int) -> Ask:
        return Ask(f"{self._seed}/{name}", self.ids(name, num_prompt), num_output)

    def asks(self, count: int, num_prompt: int, num_output: int) -> list[Ask]:
        return [self.ask(str(number), num_prompt, num_output) for number in range(count)]


def _shared(drawer: _Drawer, *, is_warm: bool) -> Traffic:
    prefix = drawer.ids("prefix", 1024)

    def ask(name: str, num_output: int) -> Ask:
        own = drawer.ask(name, 64, num_output)
        return own._replace(prompt=prefix + own.prompt)

    return Traffic([ask("prime", 1)] if is_warm else [], [ask(str(number), 16) for number in range(32)])
