"""Shared prefixes: who reads a tile never changes a bit, and tiles that rows share are read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from headstart_kernels import _native
from headstart_kernels.metadata import NULL_PAGE
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.attention_cases import (
    Heads,
    NativeAttention,
    Row,
    dense_attention,
    fill_storage,
    make_metadata,
    random_sequence,
)

Case = tuple[list[Row], list[Any]]

PAGE_SIZE = 16
HEADS = Heads(2, 3, 16)
ISAS = _native.available_isas()


def join(prefix: Any, tail: Any) -> tuple[np.ndarray[Any, Any], ...]:
    return tuple(np.concatenate(parts) for parts in zip(prefix, tail, strict=True))


class Family:
    """Makes rows that share pages: a row forks from the first `keep` tokens of another (whole pages of them)."""

    def __init__(self, heads: Heads = HEADS, page_size: int = PAGE_SIZE, seed: int = 0) -> None:
        self.heads = heads
        self.page_size = page_size
        self.rng = np.random.default_rng(seed)
        self.next_page = NULL_PAGE + 1

    def pages(self, count: int) -> list[int]:
        self.next_page += count
        return list(range(self.next_page - count, self.next_page))

    def row(
        self, length: int, num_tokens: int, parent: tuple[Row, Any] | None = None, keep: int = 0
    ) -> tuple[Row, Any]:
        sequence: Any = random_sequence(length, self.heads, self.rng)
        shared: list[int] = []
        if parent is not None:
            keep = keep // self.page_size * self.page_size
            sequence = join([x[:keep] for x in parent[1]], [x[keep:] for x in sequence])
            shared = parent[0].pages[: keep // self.page_size]
        own = -(-length // self.page_size) - len(shared)
        return Row(length - num_tokens, num_tokens, shared + self.pages(own)), sequence


def rows_of_one_prefix(family: Family, shared: int, lengths: list[tuple[int, int]]) -> Case:
    parent = family.row(shared, 1)
    made = [family.row(shared + length, count, parent, shared) for length, count in lengths]
    return [row for row, _ in made], [sequence for _, sequence in made]


def attend(case: Case, native: NativeAttention, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows, sequences = case
    page_size = PAGE_SIZE
    num_pages = max(page for row in rows for page in row.pages) + 1
    return native(rows, sequences, fill_storage(rows, sequences, page_size, num_pages).to(dtype))


def check_grouping(case: Case, isa: str, dtype: torch.dtype = torch.float32) -> None:
    """Equal bits grouped, not grouped, alone, in another order and on one thread."""
    rows, sequences = case
    expected = attend(case, NativeAttention(isa, 2, shares_prefixes=False), dtype)
    assert torch.equal(attend(case, NativeAttention(isa, 2), dtype), expected)
    assert torch.equal(attend(case, NativeAttention(isa, 1), dtype), expected)
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    shuffled = attend(([rows[i] for i in order], [sequences[i] for i in order]), NativeAttention(isa, 3), dtype)
    starts = np.cumsum([0, *(rows[i].num_tokens for i in order)])
    for place, index in enumerate(order):
        first = sum(row.num_tokens for row in rows[:index])
        own = shuffled[starts[place] : starts[place + 1]]
        assert torch.equal(own, expected[first : first + rows[index].num_tokens])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("isa", ISAS)
def test_thirty_two_rows_of_one_prefix_give_the_bits_of_each_alone(isa: str, dtype: torch.dtype) -> None:
    case = rows_of_one_prefix(Family(), 1024, [(1 + 3 * index, 1) for index in range(32)])
    check_grouping(case, isa, dtype)


@pytest.mark.parametrize("isa", ISAS)
def test_a_grouped_step_equals_dense_attention(isa: str) -> None:
    case = rows_of_one_prefix(Family(), 320, [(30, 1), (70, 5), (1, 1), (200, 3)])
    expected = [
        dense_attention(q[row.start :], k, v, HEADS.head_dim**-0.5) for row, (q, k, v) in zip(*case, strict=True)
    ]
    np.testing.assert_allclose(attend(case, NativeAttention(isa)).numpy(), np.concatenate(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shared", [16, 48, 64, 80, 128, 272, 496, 512, 528, 1024, 1040])
@pytest.mark.parametrize("isa", ISAS)
def test_a_prefix_may_end_anywhere_in_a_tile_or_chunk(isa: str, shared: int) -> None:
    check_grouping(rows_of_one_prefix(Family(), shared, [(1, 1), (90, 1), (300, 4), (5, 5)]), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_prefixes_within_prefixes_give_the_bits_of_each_row_alone(isa: str) -> None:
    family = Family()
    root = family.row(320, 1)
    branches = [family.row(448 + 64 * index, 1, root, 320) for index in range(3)]
    made = [family.row(700 + index, 1 + index % 3, branches[index % 3], 448) for index in range(9)]
    made += [family.row(400, 1, root, 320), family.row(321, 1, root, 320), family.row(500, 1), branches[0]]
    check_grouping(([row for row, _ in made], [sequence for _, sequence in made]), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_whose_own_queries_stand_in_the_shared_pages_keeps_its_bits(isa: str) -> None:
    family = Family()
    parent = family.row(400, 1)
    again = Row(383, 1, parent[0].pages[:24]), tuple(x[:384] for x in parent[1])
    others = [family.row(420 + index, 1, parent, 400) for index in range(3)]
    made = [*others, again, (Row(130, 40, parent[0].pages[:11]), tuple(x[:170] for x in parent[1]))]
    rows, sequences = [row for row, _ in made], [sequence for _, sequence in made]
    num_pages = family.next_page
    outputs = []
    for shares in (True, False):
        # The shared pages hold all that the parent computed, as when a hit recomputes its last tokens.
        storage = fill_storage([*rows, Row(400, 0, parent[0].pages)], [*sequences, parent[1]], PAGE_SIZE, num_pages)
        outputs.append(NativeAttention(isa, 2, shares)(rows, sequences, storage))
    assert torch.equal(outputs[0], outputs[1])


@st.composite
def families(draw: st.DrawFn) -> Case:
    """Up to 10 rows, each forked from an earlier one at any page, or on its own."""
    family = Family(Heads(1, draw(st.integers(1, 9)), 8), seed=draw(st.integers(0, 99)))
    made: list[tuple[Row, Any]] = []
    for _ in range(draw(st.integers(1, 10))):
        num_tokens = draw(st.integers(1, 6))
        parent = draw(st.sampled_from(made)) if made and draw(st.booleans()) else None
        keep = draw(st.integers(0, parent[0].start)) if parent else 0
        made.append(family.row(keep + num_tokens + draw(st.integers(0, 600)), num_tokens, parent, keep))
    return [row for row, _ in made], [sequence for _, sequence in made]


@settings(max_examples=40, deadline=None)
@given(case=families(), isa=st.sampled_from(ISAS))
def test_any_tree_of_prefixes_gives_the_bits_of_each_row_alone(case: Case, isa: str) -> None:
    check_grouping(case, isa)


def num_tile_reads(case: Case, *, shares_prefixes: bool) -> int:
    metadata = make_metadata(case[0], PAGE_SIZE)
    plan = NativeAttention(ISAS[0], 2, shares_prefixes).plan(
        metadata, HEADS.num_kv_heads * HEADS.group, HEADS.num_kv_heads
    )
    return int(plan.num_tile_reads)


def test_tiles_of_a_shared_prefix_are_read_once() -> None:
    case = rows_of_one_prefix(Family(), 1024, [(80, 1)] * 32)
    assert num_tile_reads(case, shares_prefixes=True) == 16 + 32 * 2
    assert num_tile_reads(case, shares_prefixes=False) == 32 * 18


def test_rows_that_share_nothing_read_their_own_tiles() -> None:
    family = Family()
    made = [family.row(200, 1) for _ in range(8)]
    case = [row for row, _ in made], [sequence for _, sequence in made]
    assert num_tile_reads(case, shares_prefixes=True) == num_tile_reads(case, shares_prefixes=False) == 8 * 4


def plan_of(**changes: Any) -> Any:
    """A row of 20 tokens on two pages, one of them new."""
    arguments: dict[str, Any] = {
        "qo_indptr": np.array([0, 1], np.int32),
        "kv_indptr": np.array([0, 2], np.int32),
        "kv_indices": np.array([1, 2], np.int32),
        "seq_lens": np.array([20], np.int32),
        "page_size": 16,
        "num_heads": 6,
        "num_kv_heads": 2,
        "num_threads": 1,
    }
    return _native.plan_attention(**(arguments | changes))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("qo_indptr", np.array([0, 21], np.int32)),
        ("qo_indptr", np.array([1, 1], np.int32)),
        ("qo_indptr", np.array([0], np.int32)),
        ("kv_indptr", np.array([0, 1], np.int32)),
        ("kv_indices", np.array([1, -2], np.int32)),
        ("seq_lens", np.array([-1], np.int32)),
        ("page_size", 0),
        ("num_heads", 7),
        ("num_kv_heads", 0),
        ("num_threads", 0),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=argument if argument != "seq_lens" else "seq_lens|qo_indptr"):
        plan_of(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "shape"),
    [("q", (1, 95)), ("q", (2, 96)), ("out", (1, 95)), ("kv", (2, 2, 2, 16, 16)), ("kv", (3, 2, 2, 8, 16))],
)
def test_arrays_that_do_not_fit_the_plan_are_refused_by_name(argument: str, shape: tuple[int, ...]) -> None:
    shapes = {"q": (1, 96), "kv": (3, 2, 2, 16, 16), "out": (1, 96)} | {argument: shape}
    arrays = {name: np.zeros(size, np.float32) for name, size in shapes.items()}
    with pytest.raises(ValueError, match=argument):
        _native.attention(_native.ThreadPool(1), plan_of(), **arrays, scale=0.25)


@pytest.mark.parametrize("head_dim", [12, 264])
def test_a_head_dim_that_no_kernel_serves_is_refused(head_dim: int) -> None:
    q = np.zeros((1, 6 * head_dim), np.float32)
    with pytest.raises(ValueError, match="head_dim"):
        _native.attention(
            _native.ThreadPool(1), plan_of(), q, np.zeros((3, 2, 2, 16, head_dim), np.float32), q.copy(), 1.0
        )
