"""What every kind of `headstart bench` prints: a table for people, and last one line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_result(
    result: Mapping[str, object], *, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = ""
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
    print(json.dumps(result), flush=True)
