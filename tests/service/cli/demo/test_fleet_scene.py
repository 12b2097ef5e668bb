"""What the fleet's act claims: each claim fails when it should and says of whom, and prints as it is."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from headstart.cli.demo.fleet_scene import FleetOutcome, Round, Served, check_fleet, hit_ratio
from headstart.cli.demo.fleet_show import growing_table, print_outcome
from headstart.cli.demo.tenants import QUESTIONS, TENANTS, instructions, turns
from rich.console import Console


def _round(cached: int, *, ttft_s: float) -> Round:
    """Each tenant's first request finds nothing, its later ones `cached` of 380 tokens."""
    return Round(
        served=tuple(
            Served(
                tenant=tenant,
                question=question,
                pod="a",
                prompt_tokens=380,
                cached_tokens=cached if question else 0,
                predicted_tokens=cached if question else 0,
                token_ids=(question, 7),
                ttft_s=ttft_s if question else 0.4,
            )
            for tenant, question in turns()
        )
    )


GOOD = FleetOutcome(in_turn=_round(30, ttft_s=0.4), routed=_round(352, ttft_s=0.05), ended=(), inexact=())


def _changed(**changes: object) -> Round:
    """The routed round with another last request."""
    served = GOOD.routed.served
    return Round(served=(*served[:-1], replace(served[-1], **changes)))  # type: ignore[arg-type]


def _failed(outcome: FleetOutcome) -> list[str]:
    return [claim for claim, holds in check_fleet(outcome) if not holds]


def _printed(outcome: FleetOutcome) -> tuple[bool, str]:
    written = io.StringIO()
    has_held = print_outcome(Console(file=written, width=80), outcome)
    return has_held, " ".join(written.getvalue().split())


def test_all_claims_hold_of_a_fleet_that_works() -> None:
    assert _failed(GOOD) == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(GOOD, routed=_changed(problem="UNAVAILABLE: gone")), "UNAVAILABLE: gone"),
        (replace(GOOD, ended=("pod b",)), "not so: pod b"),
        (replace(GOOD, routed=_changed(cached_tokens=0, predicted_tokens=0)), "11 of 12 later requests"),
        (replace(GOOD, in_turn=_round(360, ttft_s=0.4)), "more was found cached"),
        (replace(GOOD, routed=_changed(predicted_tokens=336)), "for 17 of 18 requests"),
        (replace(GOOD, routed=_changed(token_ids=(1,))), "the same first tokens"),
        (replace(GOOD, inexact=("b",)), "not so: b"),
        (replace(GOOD, inexact=None), "tells what it knows"),
    ],
)
def test_a_claim_that_does_not_hold_fails_and_says_of_whom(broken: FleetOutcome, words: str) -> None:
    assert any(words in claim for claim in _failed(broken))
    has_held, text = _printed(broken)
    assert not has_held
    assert "✗" in text


def test_times_are_compared_by_their_medians() -> None:
    _, text = _printed(GOOD)
    assert "a warm prompt against a cold one: 8.0 times as fast." in text
    assert "the router against round robin: 8.0 times as fast." in text


def test_no_advantage_is_printed_as_none() -> None:
    _, text = _printed(replace(GOOD, routed=_round(352, ttft_s=0.4)))
    assert "a warm prompt against a cold one: no faster this time." in text


def test_nothing_answered_is_no_division_by_nothing() -> None:
    nothing = Round(served=tuple(replace(each, problem="UNAVAILABLE") for each in GOOD.routed.served))
    has_held, _ = _printed(replace(GOOD, in_turn=nothing, routed=nothing))
    assert not has_held
    assert hit_ratio(nothing.answered) == 0.0


def _grown(served: Sequence[Served], *, is_terminal: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, width=80, force_terminal=is_terminal)
    with growing_table(console, "a round") as show:
        for number in range(len(served)):
            show(served[: number + 1])
    return written.getvalue()


def test_a_terminal_sees_the_table_grow_and_a_pipe_gets_it_once() -> None:
    served = [*GOOD.routed.served[:-1], replace(GOOD.routed.served[-1], problem="gone")]
    for is_terminal in (True, False):
        text = _grown(served, is_terminal=is_terminal)
        assert ("\x1b" in text) == is_terminal
        assert (text.count("railway") > 3) == is_terminal
        assert "no answer" in text
        assert f"{352:>5}{50:>6} ms" in text


def test_every_tenant_asks_every_question_once_and_all_first_ones_come_first() -> None:
    order = turns()
    assert sorted(order) == sorted((tenant, number) for tenant in TENANTS for number in range(len(QUESTIONS)))
    assert [number for _, number in order] == sorted(number for _, number in order)
    assert order == turns()


def test_tenants_differ_from_their_first_words_on() -> None:
    first_words = {instructions(tenant)[:16] for tenant in TENANTS}
    assert len(first_words) == len(TENANTS)
