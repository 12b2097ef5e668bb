"""One step's arrays: order, drafts, logit rows, read-only rows, and plans that do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from headstart.core.step import StartedRow, StepPlan
from headstart.runner.batch import build_batch
from headstart.runner.rows import Rows
from service.runner.plan_driver import make_spec

MIXED = StepPlan(
    step=9,
    request_ids=["decode", "verify", "chunk", "whole"],
    starts=[5, 4, 2, 0],
    num_tokens=[1, 3, 2, 4],
    new_block_ids=[[], [6], [], [8]],
    samples=[True, True, False, True],
    drafts={1: [71, 72]},
    started=[
        StartedRow(make_spec("decode", range(10, 16)), list(range(10, 16)), 5, [1, 2]),
        StartedRow(make_spec("verify", range(20, 25)), list(range(20, 25)), 4, [3]),
        StartedRow(make_spec("chunk", range(30, 39), prompt_logprobs=0), list(range(30, 39)), 0, [4]),
        StartedRow(make_spec("whole", range(40, 44), prompt_logprobs=2), list(range(40, 44)), 0, []),
    ],
)


def build(plan):
    rows = Rows()
    return build_batch(plan, rows.apply(plan), rows, block_size=4)


def test_rows_lie_one_after_the_other_in_plan_order_with_drafts_last():
    batch = build(MIXED)
    assert batch.token_ids.tolist() == [15, 24, 71, 72, 32, 33, 40, 41, 42, 43]
    assert batch.token_ids.dtype == np.int32
    assert batch.metadata.positions.tolist() == [5, 4, 5, 6, 2, 3, 0, 1, 2, 3]
    assert batch.metadata.qo_indptr.tolist() == [0, 1, 4, 6, 10]
    assert batch.metadata.kv_indices.tolist() == [1, 2, 3, 6, 4, 8]
    assert batch.metadata.slots.tolist() == [9, 24, 25, 26, 18, 19, 32, 33, 34, 35]


def test_sampled_positions_come_first_then_the_scored_prompt_positions():
    batch = build(MIXED)
    assert batch.logit_rows.dtype == np.int32
    assert batch.logit_rows.tolist() == [0, 1, 2, 3, 9, 4, 5, 6, 7, 8]
    assert batch.samples == [(0, 0, 1, 5), (1, 1, 3, 4), (3, 4, 1, 3)]
    assert batch.prompts == [(2, 5, 2, 2), (3, 7, 3, 0)]
    assert batch.num_sample_logits == 5


def test_a_step_of_partial_prefills_asks_for_no_logits():
    plan = replace(
        MIXED,
        request_ids=["decode"],
        starts=[2],
        num_tokens=[2],
        new_block_ids=[[]],
        samples=[False],
        drafts={},
        started=MIXED.started[:1],
    )
    batch = build(plan)
    assert batch.logit_rows.tolist() == []
    assert batch.num_sample_logits == 0


def test_read_only_rows_compute_without_writing():
    batch = build(replace(MIXED, read_only=frozenset([0, 3])))
    assert batch.metadata.slots.tolist() == [-1, 24, 25, 26, 18, 19, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"starts": [5, 4, 2, -1]}, "request whole computes no known token"),
        ({"num_tokens": [0, 3, 2, 4]}, "request decode computes no known token"),
        ({"num_tokens": [1, 2, 2, 4]}, "request verify computes no known token"),
        ({"samples": [True, False, False, True]}, "request verify has drafts but does not sample"),
        ({"starts": [4, 4, 2, 0]}, "request decode does not end where its tokens end"),
        ({"num_tokens": [1, 3, 8, 4]}, "request chunk does not end where its tokens end"),
        ({"new_block_ids": [[], [], [], [8]]}, "request verify has too few blocks"),
        ({"new_block_ids": [[], [6], []]}, "zip"),
    ],
)
def test_a_plan_that_does_not_fit_its_rows_is_refused_before_the_forward_pass(change, reason):
    with pytest.raises(ValueError, match=reason):
        build(replace(MIXED, **change))
