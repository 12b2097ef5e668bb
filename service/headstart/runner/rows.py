"""Permanent rows: what the runner remembers of a request between steps, so that a plan carries only what is new.

A request keeps one line of two tables (token ids, block ids) from the plan that starts it to the plan that finishes
it. A line that is used again is never read beyond what its new owner wrote, and nothing of sampling is kept at all: it
is worked out anew from the spec and the whole token list, so a finished request leaves nothing behind.

Does not know the scheduler's budget, the pool or the model. Owner and only writer: the runner that made it, on the
engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headstart.contract.request import GenerateSpec
from headstart.core.step import StartedRow, StepPlan

IntArray = npt.NDArray[np.int32]


class Row(NamedTuple):
    """A request and its line in the tables."""

    spec: GenerateSpec
    line: int


class LineTable:
    """Lines of int32 that grow in number and in width; `lengths[line]` entries of each are meant, the rest is stale."""

    def __init__(self) -> None:
        self.cells: IntArray = np.zeros((8, 64), np.int32)
        """[lines, width]"""
        self.lengths: IntArray = np.zeros(8, np.int32)
        """[lines]"""

    def write(self, line: int, start: int, values: Sequence[int] | IntArray) -> None:
        """Put `values` at `start` of a line without changing its length."""
        end = start + len(values)
        if line >= self.cells.shape[0] or end > self.cells.shape[1]:
            self._grow(line + 1, end)
        self.cells[line, start:end] = values

    def append(self, line: int, values: Sequence[int] | IntArray) -> None:
        """Put `values` behind the meant entries of a line; they are meant from now on."""
        start = int(self.lengths[line])
        self.write(line, start, values)
        self.lengths[line] = start + len(values)

    def reset(self, line: int, values: Sequence[int] | IntArray) -> None:
        """Make `values` the whole line."""
        self.write(line, 0, values)
        self.lengths[line] = len(values)

    def _grow(self, num_lines: int, width: int) -> None:
        """Double what is too small. Only meant entries are copied: the untouched rest costs no memory."""
        old_lines, old_width = self.cells.shape
        new_lines = max(old_lines, 2 * num_lines) if num_lines > old_lines else old_lines
        new_width = max(old_width, 2 * width) if width > old_width else old_width
        cells = np.zeros((new_lines, new_width), np.int32)
        for line, length in enumerate(self.lengths.tolist()):
            cells[line, :length] = self.cells[line, :length]
        lengths = np.zeros(new_lines, np.int32)
        lengths[:old_lines] = self.lengths
        self.cells, self.lengths = cells, lengths


class Rows:
    """All rows of a runner."""

    def __init__(self) -> None:
        self.tokens = LineTable()
        """Known token ids of each line: prompt, then output."""
        self.blocks = LineTable()
        """Block ids of each line, in the order of positions."""
        self._rows: dict[str, Row] = {}
        self._free_lines: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, plan: StepPlan) -> list[Row]:
        """Forget, start and extend rows as `plan` says; returns the rows of its requests, in its order.

        Finished ids that are already gone are fine. Raises ValueError for a request that was never started.
        """
        for request_id in plan.finished:
            self._forget(request_id)
        for started in plan.started:
            self._start(started)
        try:
            rows = [self._rows[request_id] for request_id in plan.request_ids]
        except KeyError as error:
            raise ValueError(f"plan {plan.step}: request {error.args[0]} was never started") from error
        for row, block_ids in zip(rows, plan.new_block_ids, strict=True):
            if block_ids:
                self.blocks.append(row.line, block_ids)
        return rows

    def known(self, row: Row) -> IntArray:
        """The known token ids of a row: int32 [known], a view that is good until the next change."""
        return self.tokens.cells[row.line, : self.tokens.lengths[row.line]]

    def _start(self, started: StartedRow) -> None:
        """Make a row; one of the same id that is still there is replaced whole."""
        self._forget(started.spec.request_id)
        line = self._free_lines.pop() if self._free_lines else len(self._rows)
        self.tokens.reset(line, started.token_ids)
        self.blocks.reset(line, started.block_ids)
        self._rows[started.spec.request_id] = Row(started.spec, line)

    def _forget(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free_lines.append(row.line)
