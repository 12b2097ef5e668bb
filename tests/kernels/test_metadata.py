from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from headstart_kernels.metadata import AttentionMetadata, build_metadata, validate_metadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NUM_PAGES = 21


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def _builder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both builders are held to everything below."""
    if request.param == "numpy":
        monkeypatch.setattr("headstart_kernels.metadata._native", None)


def build(**changes: Any) -> AttentionMetadata:
    """A row with a prefix hit and 20 tokens, a first chunk of 5, and a decode."""
    table = np.array([[7, 2, 11, 12], [20, 0, 0, 0], [1, 3, 6, 0]], np.int32)
    arguments: dict[str, Any] = {
        "starts": [32, 0, 32],
        "num_tokens": [20, 5, 1],
        "block_tables": table,
        "table_rows": [0, 1, 2],
        "read_only": [False] * 3,
        "page_size": 16,
    }
    return build_metadata(**(arguments | changes))


def test_a_mixed_step_is_laid_out_as_flashinfer_defines_it() -> None:
    metadata = build()
    validate_metadata(metadata, NUM_PAGES)
    assert metadata.qo_indptr.tolist() == [0, 20, 25, 26]
    assert metadata.kv_indptr.tolist() == [0, 4, 5, 8]
    assert metadata.kv_indices.tolist() == [7, 2, 11, 12, 20, 1, 3, 6]
    assert metadata.kv_last_page_len.tolist() == [4, 5, 1]
    assert metadata.seq_lens.tolist() == [52, 5, 33]
    assert metadata.positions.tolist() == [*range(32, 52), *range(5), 32]
    assert metadata.slots.tolist() == [*range(176, 196), *range(320, 325), 96]


def test_an_exact_multiple_of_the_page_fills_its_last_page() -> None:
    metadata = build(starts=[48, 0, 32], num_tokens=[16, 16, 16])
    assert metadata.kv_last_page_len.tolist() == [16, 16, 16]
    assert np.diff(metadata.kv_indptr).tolist() == [4, 1, 3]


def test_rows_may_stand_on_any_line_of_the_table() -> None:
    metadata = build(starts=[0, 32], num_tokens=[3, 1], table_rows=[2, 0], read_only=[False, False])
    assert metadata.kv_indices.tolist() == [1, 7, 2, 11]
    assert metadata.slots.tolist() == [16, 17, 18, 176]


def test_a_read_only_row_writes_nothing() -> None:
    metadata = build(read_only=[False, False, True])
    validate_metadata(metadata, NUM_PAGES)
    assert metadata.slots[-1] == -1
    assert (metadata.slots[:-1] >= 0).all()


def test_an_empty_batch_is_valid() -> None:
    metadata = build(starts=[], num_tokens=[], table_rows=[], read_only=[])
    validate_metadata(metadata, NUM_PAGES)
    assert (metadata.num_rows, metadata.num_tokens) == (0, 0)


def test_a_row_longer_than_its_line_of_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tables"):
        build(num_tokens=[33, 5, 1])


def test_a_padding_row_may_name_the_null_page() -> None:
    metadata = build_metadata(
        starts=[0],
        num_tokens=[1],
        block_tables=np.zeros((1, 1), np.int32),
        table_rows=[0],
        read_only=[True],
        page_size=16,
    )
    validate_metadata(metadata, NUM_PAGES)


def changed(name: str, index: int, value: int) -> AttentionMetadata:
    metadata = build()
    array = getattr(metadata, name).copy()
    array[index] = value
    return dataclasses.replace(metadata, **{name: array})


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("qo_indptr", 0, 1),
        ("qo_indptr", 1, 26),
        ("qo_indptr", 3, 25),
        ("kv_indptr", 1, 3),
        ("kv_indptr", 3, 9),
        ("kv_indptr", 1, -1),
        ("kv_indices", 0, NUM_PAGES),
        ("kv_indices", 0, -1),
        ("kv_indices", 0, 0),
        ("kv_last_page_len", 0, 17),
        ("kv_last_page_len", 0, 0),
        ("kv_last_page_len", 0, 5),
        ("seq_lens", 0, -1),
        ("positions", 0, 31),
        ("slots", 0, 177),
        ("slots", 0, -2),
        ("slots", 0, 16 * NUM_PAGES),
    ],
)
def test_a_wrong_value_is_refused_and_its_argument_named(name: str, index: int, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^{name}:"):
        validate_metadata(changed(name, index, value), NUM_PAGES)


@pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "seq_lens", "positions"])
def test_an_int64_index_array_is_refused_and_named(name: str) -> None:
    metadata = build()
    wide = dataclasses.replace(metadata, **{name: getattr(metadata, name).astype(np.int64)})
    with pytest.raises(ValueError, match=rf"^{name}: must be int32"):
        validate_metadata(wide, NUM_PAGES)


def test_more_query_tokens_than_tokens_are_refused() -> None:
    metadata = build(starts=[0], num_tokens=[5], table_rows=[0], read_only=[False])
    short = dataclasses.replace(metadata, seq_lens=np.array([4], np.int32), kv_last_page_len=np.array([4], np.int32))
    with pytest.raises(ValueError, match=r"^qo_indptr:"):
        validate_metadata(short, NUM_PAGES)


def test_a_row_that_is_no_padding_may_not_write_the_null_page() -> None:
    metadata = build_metadata(
        starts=[0],
        num_tokens=[1],
        block_tables=np.zeros((1, 1), np.int32),
        table_rows=[0],
        read_only=[False],
        page_size=16,
    )
    with pytest.raises(ValueError, match=r"^slots: the null page"):
        validate_metadata(metadata, NUM_PAGES)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40), st.booleans()), max_size=6),
    page_size=st.integers(1, 64),
    seed=st.integers(0, 2**16),
)
def test_whatever_is_built_is_valid(rows: list[tuple[int, int, bool]], page_size: int, seed: int) -> None:
    needed = [-(-(start + count) // page_size) for start, count, _ in rows]
    num_pages = sum(needed) + 1
    pages = np.random.default_rng(seed).permutation(num_pages - 1).astype(np.int32) + 1
    table = np.zeros((len(rows) + 1, max(needed, default=0) + 1), np.int32)
    for line, (count, end) in enumerate(zip(needed, np.cumsum(needed), strict=True)):
        table[line, :count] = pages[end - count : end]
    metadata = build_metadata(
        starts=[row[0] for row in rows],
        num_tokens=[row[1] for row in rows],
        block_tables=table,
        table_rows=range(len(rows)),
        read_only=[row[2] for row in rows],
        page_size=page_size,
    )
    validate_metadata(metadata, num_pages)
    assert metadata.num_tokens == sum(row[1] for row in rows)
