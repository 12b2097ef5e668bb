"""Writes the values into the chart's README.md, below the mark; what stands above it is written by hand.

With --check it writes nothing and fails when the file would change. Holds no state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from chart_values import CHART, Value, read_values

README = CHART / "README.md"

_MARK = "<!-- values: below this line `make chart` writes -->\n"
_HEAD = ("| key | default | meaning |", "|---|---|---|")


def generate() -> str:
    """The text of the file. Raises ValueError when the mark is missing."""
    above, mark, _ = README.read_text(encoding="utf-8").partition(_MARK)
    if not mark:
        raise ValueError(f"{README}: the line {_MARK.strip()!r} is missing")
    return above + mark + "\n" + "\n".join(_tables(read_values())) + "\n"


def _tables(values: tuple[Value, ...]) -> Iterator[str]:
    """A table for each key with others below it, and one for each run of keys without."""
    for is_section, run in groupby(values, lambda value: bool(value.children)):
        if not is_section:
            alone = list(run)
            title = " to ".join(dict.fromkeys((alone[0].key, alone[-1].key)))
            yield from (f"### {title}", "", *_HEAD, *map(_row, alone), "")
            continue
        for section in run:
            yield from (f"### {section.key}", "", section.description, "", *_HEAD, *_rows(section.children), "")


def _rows(values: tuple[Value, ...]) -> Iterator[str]:
    for value in values:
        yield _row(value)
        yield from _rows(value.children)


def _row(value: Value) -> str:
    default = "" if value.children else f"`{_shown(value.default)}`"
    return f"| `{value.key}` | {default} | {_cell(value.description)} |"


def _shown(default: Any) -> str:
    """As one would write it in YAML on one line."""
    if isinstance(default, str):
        return _cell(default) or '""'
    return _cell(json.dumps(default, ensure_ascii=False))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    text = generate()
    if "--check" in arguments:
        if README.read_text(encoding="utf-8") == text:
            return 0
        print(f"{README.name} of the chart is not what values.yaml gives: make chart", file=sys.stderr)
        return 1
    README.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
