"""Rows: started, extended, forgotten, and lines that are used again."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.core.step import StartedRow, StepPlan
from headstart.runner.rows import LineTable, Rows
from service.runner.plan_driver import make_spec


def plan(ids=(), new_blocks=None, *, started=(), finished=()):
    num = len(ids)
    return StepPlan(
        step=3,
        request_ids=list(ids),
        starts=[0] * num,
        num_tokens=[1] * num,
        new_block_ids=new_blocks or [[] for _ in ids],
        samples=[True] * num,
        started=list(started),
        finished=list(finished),
    )


def started(request_id, token_ids, block_ids=()):
    return StartedRow(make_spec(request_id), list(token_ids), 0, list(block_ids))


def blocks(rows, row):
    return rows.blocks.cells[row.line, : rows.blocks.lengths[row.line]].tolist()


def test_a_started_row_knows_its_tokens_and_hit_blocks_and_gets_new_ones_behind_them():
    rows = Rows()
    (row,) = rows.apply(plan(["a"], [[4, 5]], started=[started("a", [1, 2, 3], [9, 8])]))
    assert rows.known(row).tolist() == [1, 2, 3]
    assert blocks(rows, row) == [9, 8, 4, 5]
    assert rows.known(row).dtype == np.int32


def test_rows_come_in_the_order_of_the_plan():
    rows = Rows()
    rows.apply(plan(started=[started("a", [1]), started("b", [2]), started("c", [3])]))
    got = rows.apply(plan(["c", "a", "b"], [[], [7], []]))
    assert [row.spec.request_id for row in got] == ["c", "a", "b"]
    assert blocks(rows, got[1]) == [7]


def test_a_line_that_is_used_again_shows_nothing_of_its_last_owner():
    rows = Rows()
    (old,) = rows.apply(plan(["a"], [[1, 2, 3]], started=[started("a", range(50))]))
    (new,) = rows.apply(plan(["b"], started=[started("b", [7])], finished=["a"]))
    assert new.line == old.line
    assert rows.known(new).tolist() == [7]
    assert blocks(rows, new) == []


def test_a_preempted_request_may_come_back_in_the_same_plan():
    rows = Rows()
    rows.apply(plan(started=[started("a", [1, 2], [5])]))
    (row,) = rows.apply(plan(["a"], [[6]], started=[started("a", [1, 2, 3])], finished=["a"]))
    assert rows.known(row).tolist() == [1, 2, 3]
    assert blocks(rows, row) == [6]
    assert len(rows) == 1


def test_finishing_what_is_gone_or_never_was_is_fine():
    rows = Rows()
    rows.apply(plan(started=[started("a", [1])]))
    rows.apply(plan(finished=["a", "a", "x"]))
    rows.apply(plan(finished=["a"]))
    got = rows.apply(plan(["b", "c"], started=[started("b", [2]), started("c", [3])]))
    assert len(rows) == 2
    assert got[0].line != got[1].line


def test_a_request_that_was_never_started_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="plan 3: request ghost was never started"):
        Rows().apply(plan(["ghost"]))


def test_tables_grow_and_keep_what_is_meant():
    table = LineTable()
    for line in range(40):
        table.reset(line, [line] * (line + 1))
    table.append(3, range(1000))
    lines = {line: table.cells[line, : table.lengths[line]].tolist() for line in range(40)}
    assert lines.pop(3) == [3] * 4 + list(range(1000))
    assert lines == {line: [line] * (line + 1) for line in lines}


def test_written_guesses_are_not_known():
    table = LineTable()
    table.reset(0, [1, 2])
    table.write(0, 2, [7, 8])
    assert table.lengths[0] == 2
    table.append(0, [5])
    assert table.cells[0, :4].tolist() == [1, 2, 5, 8]


def test_a_new_row_takes_the_free_line_and_leaves_its_neighbours_alone():
    rows = Rows()
    rows.apply(plan(started=[started("a", [1]), started("b", [2])]))
    kept, new = rows.apply(plan(["b", "c"], started=[started("c", [3])], finished=["a"]))
    assert rows.known(kept).tolist() == [2]
    assert rows.known(new).tolist() == [3]
