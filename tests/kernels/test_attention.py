"""The contract of an attention backend. A backend joins by standing in BACKENDS."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from headstart_kernels import _native
from headstart_kernels.metadata import validate_metadata
from headstart_kernels.reference import MAX_PAIRS, TILE_KEYS, paged_attention, write_kv
from kernels.attention_cases import (
    Heads,
    NativeAttention,
    Row,
    dense_attention,
    fill_storage,
    lay_out,
    make_metadata,
    random_sequence,
    step_inputs,
)

Backend = Callable[..., torch.Tensor]


def reference(rows: list[Row], sequences: list[Any], storage: torch.Tensor) -> torch.Tensor:
    """Write this step's K/V, then attend."""
    metadata = make_metadata(rows, storage.shape[2])
    validate_metadata(metadata, len(storage))
    q, k, v = step_inputs(rows, sequences)
    write_kv(storage, k.to(storage.dtype), v.to(storage.dtype), torch.from_numpy(metadata.slots))
    return paged_attention(q.to(storage.dtype), storage, metadata, q.shape[-1] ** -0.5)


BACKENDS: dict[str, Backend] = {"reference": reference}
BACKENDS |= {f"native-{isa}": NativeAttention(isa) for isa in _native.available_isas()}


@pytest.fixture(params=list(BACKENDS))
def attend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def expected_output(rows: list[Row], sequences: list[Any]) -> np.ndarray[Any, Any]:
    outputs = []
    for row, (q, k, v) in zip(rows, sequences, strict=True):
        end = row.start + row.num_tokens
        outputs.append(dense_attention(q[row.start : end], k[:end], v[:end], q.shape[-1] ** -0.5))
    return np.concatenate(outputs)


def check_against_dense(
    attend: Backend,
    lengths: list[tuple[int, int]],
    *,
    heads: Heads,
    page_size: int,
    num_pages: int = 600,
    poison: float = np.nan,
) -> None:
    rng = np.random.default_rng(7)
    rows = lay_out(lengths, page_size, num_pages, rng)
    sequences = [random_sequence(start + count, heads, rng) for start, count in lengths]
    out = attend(rows, sequences, fill_storage(rows, sequences, page_size, num_pages, poison))
    np.testing.assert_allclose(out.numpy(), expected_output(rows, sequences), atol=1e-5, rtol=0)


MIXED = [(40, 9), (0, 5), (32, 1), (0, 0), (63, 1), (64, 1), (16, 16), (130, 3), (20, 0)]


@pytest.mark.parametrize("page_size", [1, 3, 8, 16, 32, 64])
def test_a_ragged_batch_on_shuffled_pages_equals_dense_attention(attend: Backend, page_size: int) -> None:
    check_against_dense(attend, MIXED, heads=Heads(), page_size=page_size)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_group_size_and_head_dim_equals_dense_attention(attend: Backend, group: int, head_dim: int) -> None:
    lengths = [(17, 1), (0, 11), (70, 2)]
    check_against_dense(attend, lengths, heads=Heads(2, group, head_dim), page_size=16)


@pytest.mark.parametrize("num_kv_heads", [3, 8, 11])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_many_rows_of_one_token_with_many_heads_equal_dense_attention(
    attend: Backend, num_kv_heads: int, poison: float
) -> None:
    lengths = [(start, 1) for start in (0, 1, 62, 63, 64, 65, 127, 128, 129, 255, 300, 511, 512, 600)]
    check_against_dense(attend, lengths, heads=Heads(num_kv_heads, 2, 72), page_size=16, poison=poison)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e38])
def test_what_lies_in_unused_slots_never_matters(attend: Backend, poison: float) -> None:
    check_against_dense(attend, [(0, 17), (16, 1), (5, 2)], heads=Heads(), page_size=16, poison=poison)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [0, 1])
def test_a_number_that_is_none_reaches_the_output_of_those_who_see_it(
    attend: Backend, part: int, dtype: torch.dtype
) -> None:
    sequence = random_sequence(300, Heads(), np.random.default_rng(12))
    keys_or_values = sequence[1 + part].copy()
    keys_or_values[150] = np.nan
    sequence = (*sequence[: 1 + part], keys_or_values, *sequence[2 + part :])
    rows = [Row(140, 20, list(range(1, 11)))]
    out = attend(rows, [sequence], fill_storage(rows, [sequence], 16, 20).to(dtype))
    assert out[10:].isnan().all()


def test_sequences_shorter_than_a_page_equal_dense_attention(attend: Backend) -> None:
    check_against_dense(attend, [(0, 1), (1, 8), (0, 15)], heads=Heads(), page_size=16)


def test_two_identical_rows_give_identical_bits(attend: Backend) -> None:
    rng = np.random.default_rng(1)
    sequence = random_sequence(9, Heads(), rng)
    rows = [Row(1, 8, [3]), Row(0, 4, [9]), Row(1, 8, [5])]
    sequences = [sequence, random_sequence(4, Heads(), rng), sequence]
    out = attend(rows, sequences, fill_storage(rows, sequences, 16, 12))
    assert torch.equal(out[:8], out[12:])
    assert out.abs().amax(dim=(1, 2)).min() > 0


def test_pages_may_lie_anywhere_without_changing_a_bit(attend: Backend) -> None:
    rng = np.random.default_rng(2)
    sequence = random_sequence(200, Heads(), rng)
    placements = [
        list(range(1, 14)),
        list(range(13, 0, -1)),
        (rng.permutation(4095)[:13] + 1).tolist(),
    ]
    outputs = []
    for pages in placements:
        rows = [Row(180, 20, pages)]
        outputs.append(attend(rows, [sequence], fill_storage(rows, [sequence], 16, 4096)))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [150, 151])
def test_the_page_size_does_not_change_a_bit(attend: Backend, length: int, dtype: torch.dtype) -> None:
    sequence = random_sequence(length, Heads(), np.random.default_rng(3))
    outputs = []
    for page_size in (16, 1, 12, 24, 32, 64):
        rows = [Row(100, length - 100, list(range(1, 1 + -(-length // page_size))))]
        outputs.append(attend(rows, [sequence], fill_storage(rows, [sequence], page_size, 160).to(dtype)))
    assert not outputs[0].isnan().any()
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


def run_in_chunks(attend: Backend, sequence: Any, edges: list[int], storage: torch.Tensor) -> torch.Tensor:
    pages = list(range(1, 1 + -(-edges[-1] // 16)))
    outputs = []
    for start, end in pairwise(edges):
        rows = [Row(start, end - start, pages[: -(-end // 16)])]
        outputs.append(attend(rows, [sequence], storage))
    return torch.cat(outputs)


@pytest.mark.parametrize("step", [150, 16, 17, 1])
def test_cutting_a_prompt_into_chunks_does_not_change_a_bit(attend: Backend, step: int) -> None:
    sequence = random_sequence(600, Heads(), np.random.default_rng(4))
    whole = run_in_chunks(attend, sequence, [0, 600], torch.full((40, 2, 16, 2, 64), np.nan))
    edges = [*range(0, 600, step), 600]
    assert torch.equal(whole, run_in_chunks(attend, sequence, edges, torch.full((40, 2, 16, 2, 64), np.nan)))


@pytest.mark.parametrize("batch", [2, 7, 16])
def test_other_rows_of_the_batch_do_not_change_a_bit(attend: Backend, batch: int) -> None:
    rng = np.random.default_rng(5)
    lengths = [(590, 10)] + [(int(rng.integers(0, 200)), int(rng.integers(0, 9))) for _ in range(batch - 1)]
    rows = lay_out(lengths, 16, 400, rng)
    sequences = [random_sequence(start + count, Heads(), rng) for start, count in lengths]
    alone = attend(rows[:1], sequences[:1], fill_storage(rows[:1], sequences[:1], 16, 400))
    rows, sequences = [*rows[1:], rows[0]], [*sequences[1:], sequences[0]]
    assert torch.equal(alone, attend(rows, sequences, fill_storage(rows, sequences, 16, 400))[-10:])


def test_a_step_that_exceeds_the_work_limit_gives_the_same_bits_as_its_parts(attend: Backend) -> None:
    heads = Heads(1, 1, 64)
    length = TILE_KEYS * 12
    lengths = [(0, length)] * 3
    rng = np.random.default_rng(6)
    rows = lay_out(lengths, 16, 400, rng)
    sequences = [random_sequence(length, heads, rng) for _ in lengths]
    pairs = 3 * sum(position // TILE_KEYS + 1 for position in range(0, length, 8))
    assert pairs > MAX_PAIRS
    together = attend(rows, sequences, fill_storage(rows, sequences, 16, 400))
    for index in range(3):
        own = slice(index, index + 1)
        alone = attend(rows[own], sequences[own], fill_storage(rows[own], sequences[own], 16, 400))
        assert torch.equal(alone, together[index * length : (index + 1) * length])


def test_the_number_of_threads_does_not_change_a_bit(attend: Backend) -> None:
    sequence = random_sequence(600, Heads(), np.random.default_rng(8))
    before = torch.get_num_threads()
    outputs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            storage = torch.full((40, 2, 16, 2, 64), np.nan)
            outputs.append(run_in_chunks(attend, sequence, [0, 100, 599, 600], storage))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])


def test_bfloat16_storage_stays_near_the_dense_answer(attend: Backend) -> None:
    rng = np.random.default_rng(9)
    lengths = [(40, 9), (0, 5), (120, 1)]
    rows = lay_out(lengths, 16, 40, rng)
    sequences = [random_sequence(start + count, Heads(), rng) for start, count in lengths]
    storage = fill_storage(rows, sequences, 16, 40).bfloat16()
    out = attend(rows, sequences, storage)
    assert out.dtype == torch.bfloat16
    np.testing.assert_allclose(out.float().numpy(), expected_output(rows, sequences), atol=3e-2, rtol=0)


@pytest.mark.parametrize("isa", _native.available_isas())
def test_a_native_step_on_one_thread_gives_the_bits_of_two(isa: str) -> None:
    rng = np.random.default_rng(10)
    lengths = [(700, 1), (0, 300), (520, 40), (63, 1)]
    rows = lay_out(lengths, 16, 200, rng)
    sequences = [random_sequence(start + count, Heads(), rng) for start, count in lengths]
    outputs = [
        NativeAttention(isa, threads)(rows, sequences, fill_storage(rows, sequences, 16, 200)) for threads in (1, 2, 5)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_an_empty_native_batch_gives_an_empty_result() -> None:
    out = np.empty((0, 384), np.float32)
    plan = NativeAttention("scalar").plan(make_metadata([], 16), 6, 2)
    kv = np.zeros((4, 2, 2, 16, 64), np.float32)
    _native.attention(_native.ThreadPool(1), plan, out, kv, out.copy(), 0.125, "scalar")
    assert plan.num_units == 0


def test_an_empty_batch_gives_an_empty_result() -> None:
    metadata = make_metadata([], 16)
    out = paged_attention(torch.empty(0, 6, 64), torch.zeros(4, 2, 16, 2, 64), metadata, 0.125)
    assert out.shape == (0, 6, 64)
