"""Requests to play to a fleet in virtual time: drawn from a seed, or read from a recorded trace. Knows no pods."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request of `group` that comes at `at_s`: who shares a prefix is of one group."""

    at_s: float
    group: int
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Poisson arrivals, `rate` a second: each has the prefix of its group, drawn by weight, and a suffix of its own.

    The defaults are the workload that other routers were measured with: 24 groups, 100 blocks of 16 tokens shared,
    8 blocks of one's own, 4 blocks of answer.
    """

    num_requests: int = 1200
    rate: float = 60.0
    weights: Sequence[float] = (1.0,) * 24
    prefix_tokens: int = 1600
    suffix_tokens: int = 128
    output_tokens: int = 64

    def arrivals(self, seed: int) -> list[Arrival]:
        """Equal seeds, equal requests."""
        source = random.Random(seed)
        prefixes = [tuple(source.randrange(1 << 29) for _ in range(self.prefix_tokens)) for _ in self.weights]
        arrivals, at_s = [], 0.0
        for _ in range(self.num_requests):
            at_s += source.expovariate(self.rate)
            (group,) = source.choices(range(len(self.weights)), self.weights)
            suffix = tuple(source.randrange(1 << 29, 1 << 30) for _ in range(self.suffix_tokens))
            prompt = prefixes[group] + suffix
            arrivals.append(Arrival(at_s=at_s, group=group, prompt=prompt, max_tokens=self.output_tokens))
        return arrivals


def read_trace(path: Path) -> list[Arrival]:
    """One JSON object a line, as Mooncake (FAST'25) published them: `timestamp` in ms, `hash_ids` one per 512 tokens.

    An id stands for the whole prefix that ends with it. A conversation, our group, is what shares its first two ids:
    the first alone may be one system prompt for all. Raises ConfigError that names the line.
    """
    groups: dict[tuple[int, ...], int] = {}
    arrivals = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            at_s, prompt = float(fields["timestamp"]) / 1000, tuple(map(int, fields["hash_ids"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}:{number}: not an object with timestamp and hash_ids: {error!r}") from None
        if prompt:
            group = groups.setdefault(prompt[:2], len(groups))
            arrivals.append(Arrival(at_s=at_s, group=group, prompt=prompt, max_tokens=1))
    if not arrivals:
        raise ConfigError(f"{path}: no request in it")
    return arrivals


def sampled(arrivals: Iterable[Arrival], *, share: float, seed: int) -> list[Arrival]:
    """Of the conversations a random share, each whole and at its own times: as many pods less see the same rate."""
    source = random.Random(seed)
    kept: dict[int, bool] = {}
    for arrival in arrivals:
        if arrival.group not in kept:
            kept[arrival.group] = source.random() < share
    return [each for each in arrivals if kept[each.group]]


def shuffled(arrivals: Sequence[Arrival], *, seed: int) -> list[Arrival]:
    """Conversations begin in another order at the same set of times; within each the pauses stay as they were."""
    begins: dict[int, float] = {}
    for arrival in arrivals:
        begins.setdefault(arrival.group, arrival.at_s)
    times = list(begins.values())
    random.Random(seed).shuffle(times)
    moved = {group: time_s - begun_s for (group, begun_s), time_s in zip(begins.items(), times, strict=True)}
    return sorted((replace(each, at_s=each.at_s + moved[each.group]) for each in arrivals), key=lambda each: each.at_s)
