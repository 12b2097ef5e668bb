"""What became of the tenants' requests at two pods, as plain values, and what must hold of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request's stream from beginning to end, as its client saw it. `problem` says why it had no end.

    `predicted_tokens` is how many cached tokens the router expected when it chose the pod; None without a router.
    """

    tenant: str
    question: int
    pod: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int | None = None
    token_ids: tuple[int, ...] = ()
    ttft_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All requests, in the order in which they were sent, under one way to choose a pod."""

    served: tuple[Served, ...]

    @property
    def answered(self) -> list[Served]:
        return [each for each in self.served if not each.problem]

    @property
    def cold(self) -> list[Served]:
        """The answered first requests of the tenants."""
        return [each for each in self.answered if each.question == 0]

    @property
    def later(self) -> list[Served]:
        return [each for each in self.answered if each.question > 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    """Both rounds. `ended` names programs that ended before they should; `inexact` pods that the router knows wrongly,
    None when it could not be asked."""

    in_turn: Round
    routed: Round
    ended: tuple[str, ...]
    inexact: tuple[str, ...] | None


def hit_ratio(served: Sequence[Served]) -> float:
    """The share of prompt tokens that was found cached."""
    return sum(each.cached_tokens for each in served) / max(1, sum(each.prompt_tokens for each in served))


def median_ttft_s(served: Sequence[Served]) -> float:
    return statistics.median(each.ttft_s for each in served) if served else 0.0


def slowest_ttft_s(served: Sequence[Served]) -> float:
    return max((each.ttft_s for each in served), default=0.0)


def found_prefix(one: Served) -> bool:
    """A tenant's instructions are nearly all of its prompts, so whoever found most of the prompt found them."""
    return one.cached_tokens > 0.5 * one.prompt_tokens


def check_fleet(outcome: FleetOutcome) -> list[tuple[str, bool]]:
    """What must hold, in words, and whether it does. Nothing here depends on how fast the machine is."""
    in_turn, routed = outcome.in_turn, outcome.routed
    failures = [each for each in (*in_turn.served, *routed.served) if each.problem]
    exact = [each for each in routed.answered if each.predicted_tokens == each.cached_tokens]
    found = [each for each in routed.later if found_prefix(each)]
    first = f": {failures[0].problem}" if failures else ""
    ended = f", not so: {', '.join(outcome.ended)}" if outcome.ended else ""
    return [
        (f"all {len(in_turn.served) + len(routed.served)} requests were answered to their end{first}", not failures),
        (f"both pods and the router ran until the end{ended}", not outcome.ended),
        (
            f"{len(found)} of {len(routed.later)} later requests were sent to the pod that held their tenant's prefix",
            len(found) == len(routed.later),
        ),
        ("more was found cached than in round robin", hit_ratio(routed.answered) > hit_ratio(in_turn.answered)),
        (
            f"what the router predicted was found: for {len(exact)} of {len(routed.answered)} requests to the token",
            len(exact) == len(routed.answered),
        ),
        (
            "both rounds gave the same first tokens, whichever pod answered",
            [each.token_ids for each in in_turn.served] == [each.token_ids for each in routed.served],
        ),
        _index_check(outcome),
    ]


def _index_check(outcome: FleetOutcome) -> tuple[str, bool]:
    if outcome.inexact is None:
        return "the router tells what it knows of the pods' caches", False
    wrong = f", not so: {', '.join(outcome.inexact)}" if outcome.inexact else ""
    return f"the router's index is what the pods hold, block for block{wrong}", not outcome.inexact
