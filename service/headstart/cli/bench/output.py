"""What every kind of `headstart bench` prints: a table for people, and last one line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

_BAR_CHARS = 50
_EIGHTHS = "▏▎▍▌▋▊▉"


class Bars(NamedTuple):
    """A chart of shares from 0 to 1: a group of bars by name, each bar with its own name."""

    title: str
    groups: Mapping[str, Mapping[str, float]]


def print_result(
    result: Mapping[str, object],
    *,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
    bars: Bars | None = None,
) -> None:
    """To stdout. The first column holds words, the others numbers; `note` explains them below the table."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if note:
        console.print(note, highlight=False, soft_wrap=True)
    if bars is not None:
        console.print(*chart(bars), sep="\n", markup=False, highlight=False, soft_wrap=True)
    print(json.dumps(result), flush=True)


def chart(bars: Bars) -> list[str]:
    """Lines of a horizontal bar chart. The axis goes from 0 to 1, or to the largest share when that is more."""
    most = max([1.0, *(share for group in bars.groups.values() for share in group.values())])
    width = max((len(name) for group in bars.groups.values() for name in group), default=0)
    lines = ["", bars.title]
    for group, shares in bars.groups.items():
        lines += ["", group]
        lines += [
            f"  {name:<{width}}  {_bar(share / most):<{_BAR_CHARS}}  {share:.3f}" for name, share in shares.items()
        ]
    return [*lines, ""]


def _bar(share: float) -> str:
    """As long as the share of the chart's width, to an eighth of a character."""
    whole, eighths = divmod(round(share * _BAR_CHARS * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths - 1] if eighths else "")
