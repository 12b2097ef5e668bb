"""Prints what the scene found: tables and a strip of steps, in colour on a terminal, plain text in a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headstart.cli.demo.scene import (
    NAMES,
    Outcome,
    check,
    computed_tokens,
    num_steps,
    shared_blocks,
)
from headstart.engine.trace import StepTrace, TraceRow

_COLOURS = {"A": "cyan", "B": "magenta", "C": "yellow"}
_STRIP_CELLS = 48


def print_outcome(console: Console, outcome: Outcome) -> bool:
    """Everything, top to bottom. Returns whether all checks hold."""
    console.print(
        "A and B ask one agent two questions, C asks about a long passage while they are answered. All three begin "
        "with the agent's rules and tools."
    )
    console.print(_requests(outcome))
    console.print(
        "Prompt, cached and computed are tokens: cached ones were in blocks that an earlier request had filled. TTFT "
        "is the time to the first token."
    )
    _print_answers(console, outcome)
    _print_steps(console, outcome)
    _print_sharing(console, outcome)
    _print_pressure(console, outcome)
    return _print_checks(console, outcome)


def _requests(outcome: Outcome) -> Table:
    table = Table(title="three requests, one prefix")
    for column in ("request", "prompt", "cached", "computed", "steps", "TTFT", "TTFT alone, cold"):
        table.add_column(column, justify="left" if column == "request" else "right")
    for name in NAMES:
        answer, alone = outcome.together[name], outcome.alone[name]
        table.add_row(
            Text(name, style=_COLOURS[name]),
            str(answer.prompt_tokens),
            str(answer.cached_tokens),
            str(computed_tokens(name, outcome)),
            str(num_steps(name, outcome)),
            f"{answer.ttft_s:.2f} s",
            f"{alone.ttft_s:.2f} s",
        )
    return table


def _print_answers(console: Console, outcome: Outcome) -> None:
    for name in NAMES:
        answer = " ".join(outcome.together[name].text.split())
        console.print(Text.assemble((f"{name}: ", _COLOURS[name]), answer))
    console.print()


def _print_steps(console: Console, outcome: Outcome) -> None:
    console.print(
        f"How each step's budget of {outcome.budget} tokens was split. A letter is a decode; ▒ is a chunk of a prompt, "
        "to scale, with its positions."
    )
    for first, last, trace in _collapsed(outcome.traces):
        steps = str(first) if first == last else f"{first}-{last}"
        line = Text(f"{steps:>8}  ")
        for row in trace.rows:
            line.append_text(_row(row, outcome.budget))
        chunks = [
            f"{row.request_id}[{row.start}..{row.start + row.num_tokens})" for row in trace.rows if _is_chunk(row)
        ]
        console.print(line, Text(" ".join(chunks)), soft_wrap=True)
    console.print()


def _is_chunk(row: TraceRow) -> bool:
    return not row.is_decode


def _row(row: TraceRow, budget: int) -> Text:
    style = _COLOURS.get(row.request_id, "")
    if row.is_decode:
        return Text(row.request_id, style=f"bold {style}")
    cells = max(1, round(_STRIP_CELLS * row.num_tokens / budget))
    return Text("▒" * cells, style=style)


def _collapsed(traces: tuple[StepTrace, ...]) -> Iterator[tuple[int, int, StepTrace]]:
    """(first, last, trace) of each run of steps that only decode the same requests; other steps stand alone.

    Steps are numbered from 1, those without rows left out.
    """
    run: list[StepTrace] = []
    number = 0
    for trace in traces:
        if not trace.rows:
            continue
        if run and not _is_same_decode(run[-1], trace):
            yield number - len(run) + 1, number, run[0]
            run = []
        run.append(trace)
        number += 1
    if run:
        yield number - len(run) + 1, number, run[0]


def _is_same_decode(before: StepTrace, after: StepTrace) -> bool:
    rows = [*before.rows, *after.rows]
    same = [row.request_id for row in before.rows] == [row.request_id for row in after.rows]
    return same and all(row.is_decode for row in rows)


def _print_sharing(console: Console, outcome: Outcome) -> None:
    for names, block_ids in sorted(shared_blocks(outcome).items()):
        together = f"{', '.join(names[:-1])} and {names[-1]}"
        console.print(
            f"Shared by {together}: {len(block_ids)} blocks of {outcome.block_size} tokens, {_ranges(block_ids)}"
        )
    console.print()


def _ranges(numbers: list[int]) -> str:
    """ "1-14, 20" for sorted numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _print_pressure(console: Console, outcome: Outcome) -> None:
    pressure = outcome.pressure
    console.print(
        f"Cache pressure: {pressure.num_prompt_tokens} foreign tokens through the pool of {outcome.num_blocks} blocks "
        f"evicted {pressure.num_evicted}: what was used least recently, and of a request its tail before its head."
    )
    table = Table()
    table.add_column("prompt of")
    table.add_column("cached before", justify="right")
    table.add_column("cached after", justify="right")
    for name in NAMES:
        table.add_row(Text(name, style=_COLOURS[name]), str(pressure.before[name]), str(pressure.after[name]))
    console.print(table)
    console.print(
        "Of a prompt whose blocks are all cached, all but its last token count as cached: that one is computed again, "
        "because the first new token comes out of it."
    )
    repeated = pressure.repeated
    console.print(f"A once more: {repeated.cached_tokens} of its {repeated.prompt_tokens} prompt tokens were cached.")


def _print_checks(console: Console, outcome: Outcome) -> bool:
    console.print()
    checks = check(outcome)
    for claim, holds in checks:
        console.print(Text.assemble(("✓ ", "green") if holds else ("✗ ", "bold red"), claim))
    return all(holds for _, holds in checks)
