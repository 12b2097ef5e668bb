"""The native decoder against the torch one, on every instruction set; and what must not show in a bit of its logits."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headstart.errors import ModelError
from headstart.model.weights import open_checkpoint
from headstart.runner.native_runner import WHOLE_MACHINE, Cpu, NativeForward
from headstart_kernels._native import available_isas
from headstart_kernels.metadata import build_metadata
from service.model.tiny_models import (
    BLOCK,
    FAMILIES,
    Sequence,
    greedy,
    open_forward,
    run_step,
    run_step_for,
    save_model,
)

POPULATE_WRITE = 23  # of madvise, which Python does not name
RNG = np.random.default_rng(0)
PROMPT = RNG.integers(3, 300, 200).tolist()
OTHERS = [RNG.integers(3, 300, length).tolist() for length in (1, 17, 64, 5, 33)]

Pages = Callable[[int], list[int]]


def open_native(path: Path, *, num_blocks: int = 64, dtype: str = "float32", cpu: Cpu = WHOLE_MACHINE) -> NativeForward:
    return NativeForward(open_checkpoint(path), num_blocks=num_blocks, block_size=BLOCK, dtype=dtype, cpu=cpu)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_logits_and_greedy_tokens_of_every_family_equal_those_of_torch(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    reference = open_forward(tmp_path)
    (expected,) = run_step(reference, [(Sequence([5, 2, 9]), PROMPT[:45])])
    tokens = greedy(reference, PROMPT[:45], 20, [7, 1, 3, 4, 6])
    for isa in available_isas():
        native = open_native(tmp_path, cpu=Cpu(isa=isa))
        (logits,) = run_step(native, [(Sequence([5, 2, 9]), PROMPT[:45])])
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0, err_msg=isa)
        assert greedy(native, PROMPT[:45], 20, [7, 1, 3, 4, 6]) == tokens


@pytest.mark.parametrize("isa", available_isas())
def test_bfloat16_stays_near_float32(tmp_path: Path, isa: str) -> None:
    save_model("llama3", tmp_path)
    (expected,) = run_step(open_forward(tmp_path), [(Sequence([1, 2, 3]), PROMPT[:45])])
    rounded = open_native(tmp_path, dtype="bfloat16", cpu=Cpu(isa=isa))
    (logits,) = run_step(rounded, [(Sequence([1, 2, 3]), PROMPT[:45])])
    error = np.abs(logits - expected).mean() / np.abs(expected).mean()
    assert 0 < error < 0.03


@pytest.fixture(scope="module", params=["smollm2", "qwen3", "qwen2"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_model(request.param, path)
    return path


@pytest.fixture(scope="module", params=[(dtype, isa) for dtype in ("float32", "bfloat16") for isa in available_isas()])
def forward(model_path: Path, request: pytest.FixtureRequest) -> NativeForward:
    dtype, isa = request.param
    return open_native(model_path, dtype=dtype, cpu=Cpu(isa=isa))


@pytest.fixture
def pages() -> Pages:
    """Hands out pages that nobody else has."""
    free = (np.random.default_rng(1).permutation(64) + 1).tolist()
    return lambda num_tokens: [free.pop() for _ in range(-(-num_tokens // BLOCK))]


def cold(forward: NativeForward) -> np.ndarray[Any, Any]:
    (logits,) = run_step(forward, [(Sequence(list(range(1, 14))), PROMPT)])
    return logits


@pytest.mark.parametrize("budget", [1, 7, 16, 99])
def test_cutting_the_prompt_into_chunks_does_not_change_a_bit(
    forward: NativeForward, pages: Pages, budget: int
) -> None:
    expected = cold(forward)
    sequence = Sequence(pages(200))
    chunks = [
        run_step(forward, [(sequence, PROMPT[start : start + budget])])[0] for start in range(0, len(PROMPT), budget)
    ]
    assert np.array_equal(np.concatenate(chunks), expected)


def test_other_requests_in_the_batch_do_not_change_a_bit(forward: NativeForward, pages: Pages) -> None:
    expected = cold(forward)
    others = [(Sequence(pages(len(tokens))), tokens) for tokens in OTHERS]
    own = (Sequence(pages(200)), PROMPT)
    logits = run_step(forward, [*others[:3], own, *others[3:]])
    assert np.array_equal(logits[3], expected)


@pytest.mark.parametrize("seed", range(6))
def test_logits_of_some_tokens_have_the_bits_of_all_and_leave_the_same_keys_and_values(
    forward: NativeForward, pages: Pages, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batch = [PROMPT[:70], *OTHERS]
    tables = [pages(len(tokens) + 1) for tokens in batch]
    everything = np.concatenate(run_step(forward, [(Sequence(t), b) for t, b in zip(tables, batch, strict=True)]))
    storage = [layer.copy() for layer in forward.kv_layers]
    wanted = rng.choice(len(everything), seed * 3, replace=seed > 3).astype(np.int32)
    some = run_step_for(forward, [(Sequence(t), b) for t, b in zip(tables, batch, strict=True)], wanted)
    assert np.array_equal(some, everything[wanted])
    assert all(np.array_equal(now, then) for now, then in zip(forward.kv_layers, storage, strict=True))


def test_rows_that_share_a_prefix_do_not_change_a_bit_of_each_other(forward: NativeForward, pages: Pages) -> None:
    expected = cold(forward)
    shared = pages(64)
    rows = []
    for _ in range(4):
        row = Sequence([*shared, *pages(200 - 64)])
        row.num_computed = 64
        rows.append(row)
    first = Sequence(rows[0].pages)
    run_step(forward, [(first, PROMPT[:64])])
    for row in run_step(forward, [(row, PROMPT[64:]) for row in rows]):
        assert np.array_equal(row, expected[64:])


def test_a_prefix_that_another_row_fills_in_the_same_step_is_read_whole(forward: NativeForward, pages: Pages) -> None:
    expected = cold(forward)
    shared = pages(64)
    first = Sequence([*shared, *pages(200 - 64)])
    second = Sequence([*shared, *pages(200 - 64)])
    second.num_computed = 64
    logits = run_step(forward, [(second, PROMPT[64:]), (first, PROMPT)])
    assert np.array_equal(logits[0], expected[64:])


def test_a_read_only_row_gives_the_same_logits_and_leaves_the_storage_alone(forward: NativeForward) -> None:
    expected = cold(forward)
    before = [layer.copy() for layer in forward.kv_layers]
    metadata = build_metadata(
        starts=[191],
        num_tokens=[1],
        block_tables=np.arange(1, 14, dtype=np.int32)[None],
        table_rows=[0],
        read_only=[True],
        page_size=BLOCK,
    )
    logits = forward.forward(np.array(PROMPT[191:192], np.int32), metadata, np.array([0], np.int32))
    assert np.array_equal(logits[0], expected[191])
    assert all(np.array_equal(a, b) for a, b in zip(before, forward.kv_layers, strict=True))


def not_a_number(layer: np.ndarray[Any, Any]) -> float | int:
    return np.nan if layer.dtype == np.float32 else 0x7FC0


def test_poison_in_unused_slots_does_not_reach_the_logits(forward: NativeForward) -> None:
    expected = cold(forward)
    for layer in forward.kv_layers:
        layer[1:] = not_a_number(layer)
    assert np.array_equal(cold(forward), expected)
    assert not any(layer[0].any() for layer in forward.kv_layers)


def test_a_row_of_poison_does_not_reach_the_other_rows(forward: NativeForward) -> None:
    expected = cold(forward)
    bad = Sequence([40, 41])
    bad.num_computed = 16
    for layer in forward.kv_layers:
        layer[40] = not_a_number(layer)
    logits = run_step(forward, [(bad, [5, 6]), (Sequence(list(range(1, 14))), PROMPT)])
    assert np.isnan(logits[0]).all()
    assert np.array_equal(logits[1], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_number_of_threads_does_not_change_a_bit(model_path: Path, dtype: str) -> None:
    alone, three = (open_native(model_path, dtype=dtype, cpu=Cpu(num_threads=count)) for count in (1, 3))
    assert np.array_equal(cold(alone), cold(three))


@pytest.fixture(scope="module")
def small_forward(tmp_path_factory: pytest.TempPathFactory) -> NativeForward:
    path = tmp_path_factory.mktemp("small")
    save_model("llama2", path)
    return open_native(path, num_blocks=4)


def one_row(**changes: int) -> dict[str, Any]:
    numbers = {"start": 0, "count": 3, "page_size": BLOCK, "page": 1} | changes
    metadata = build_metadata(
        starts=[numbers["start"]],
        num_tokens=[numbers["count"]],
        block_tables=np.full((1, 8), numbers["page"], np.int32),
        table_rows=[0],
        read_only=[False],
        page_size=numbers["page_size"],
    )
    return {"token_ids": np.array([5, 6, 7], np.int32), "metadata": metadata, "logit_rows": np.array([2], np.int32)}


def with_array(name: str, values: list[int]) -> dict[str, Any]:
    """A valid row but for one array of its metadata."""
    arguments = one_row()
    metadata = arguments["metadata"]
    old = getattr(metadata, name)
    object.__setattr__(metadata, name, np.array(values, old.dtype))
    return arguments


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("token_ids", {"token_ids": np.array([5, 300, 7], np.int32)}),
        ("token_ids", {"token_ids": np.array([5, -1, 7], np.int32)}),
        ("token_ids", {"token_ids": np.array([5, 6], np.int32)}),
        ("logit_rows", {"logit_rows": np.array([3], np.int32)}),
        ("logit_rows", {"logit_rows": np.array([-1], np.int32)}),
        ("page_size", one_row(page_size=8)),
        ("kv_indices", one_row(page=5)),
        ("kv_indices", one_row(page=0)),
        ("positions", one_row(start=64)),
        ("positions", with_array("positions", [0, 1, 3])),
        ("qo_indptr", with_array("qo_indptr", [0, 4])),
        ("qo_indptr", with_array("qo_indptr", [1, 3])),
        ("qo_indptr", with_array("qo_indptr", [0])),
        ("kv_indptr", with_array("kv_indptr", [0, 2])),
        ("kv_indptr", with_array("kv_indptr", [0, 0])),
        ("seq_lens", with_array("seq_lens", [-1])),
        ("slots", with_array("slots", [16, 17, 19])),
        ("slots", with_array("slots", [16, 17])),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_argument_named(
    small_forward: NativeForward, argument: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}:"):
        small_forward.forward(**(one_row() | changes))


def test_no_logits_and_no_tokens_are_valid_requests(small_forward: NativeForward) -> None:
    none = np.empty(0, np.int32)
    assert small_forward.forward(**(one_row() | {"logit_rows": none})).shape == (0, 300)
    table = np.zeros((1, 1), np.int32)
    metadata = build_metadata(
        starts=[], num_tokens=[], block_tables=table, table_rows=[], read_only=[], page_size=BLOCK
    )
    assert small_forward.forward(none, metadata, none).shape == (0, 300)


def test_more_logits_than_tokens_may_be_asked_for(small_forward: NativeForward) -> None:
    expected = small_forward.forward(**one_row())
    logits = small_forward.forward(**(one_row() | {"logit_rows": np.full(50, 2, np.int32)}))
    assert np.array_equal(logits, np.repeat(expected, 50, axis=0))


def test_a_type_that_is_not_served_is_refused(tmp_path: Path) -> None:
    save_model("llama2", tmp_path)
    with pytest.raises(ModelError, match="float16"):
        open_native(tmp_path, dtype="float16")


def test_an_unknown_instruction_set_is_refused(tmp_path: Path) -> None:
    save_model("llama2", tmp_path)
    with pytest.raises(ValueError, match="mmx"):
        open_native(tmp_path, cpu=Cpu(isa="mmx"))


def test_loading_tells_how_far_it_is(tmp_path: Path) -> None:
    save_model("llama2", tmp_path)
    told: list[tuple[str, float]] = []
    NativeForward(open_checkpoint(tmp_path), num_blocks=4, block_size=BLOCK, progress=lambda *step: told.append(step))
    fractions = [fraction for stage, fraction in told if stage == "load weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_forward_at_rest_takes_all_of_its_storage_and_leaves_the_content_alone(tmp_path: Path) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(POPULATE_WRITE)
        except OSError:
            pytest.skip("Linux before 5.14 cannot populate memory")
    save_model("smollm2", tmp_path)
    forward = open_native(tmp_path, num_blocks=20_000)
    storage = sum(layer.nbytes for layer in forward.kv_layers)
    before = resident_bytes()
    row = Sequence(list(range(1, 14)))
    (logits,) = run_step(forward, [(row, PROMPT)])
    while resident_bytes() - before < 0.9 * storage:
        time.sleep(0.01)
    row.num_computed -= 1
    (again,) = run_step(forward, [(row, PROMPT[-1:])])
    np.testing.assert_array_equal(again[-1], logits[-1])
