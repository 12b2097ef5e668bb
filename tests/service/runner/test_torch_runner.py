"""What the batch, the chunks and the pages of a request are must not show in a single bit of its logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from headstart.errors import ModelError
from headstart.model.weights import open_checkpoint
from headstart.runner.torch_runner import TorchForward
from headstart_kernels.metadata import build_metadata
from service.model.tiny_models import BLOCK, Sequence, open_forward, run_step, save_model

RNG = np.random.default_rng(0)
PROMPT = RNG.integers(3, 300, 200).tolist()
OTHERS = [RNG.integers(3, 300, length).tolist() for length in (1, 17, 64, 5, 33)]


@pytest.fixture(scope="module", params=["smollm2", "qwen3", "qwen2"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_model(request.param, path)
    return path


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def forward(model_path: Path, request: pytest.FixtureRequest) -> TorchForward:
    return open_forward(model_path, dtype=request.param)


@pytest.fixture
def pages() -> Callable[[int], list[int]]:
    """Hands out pages that nobody else has."""
    free = (np.random.default_rng(1).permutation(64) + 1).tolist()
    return lambda num_tokens: [free.pop() for _ in range(-(-num_tokens // BLOCK))]


def cold(forward: TorchForward) -> np.ndarray:
    (logits,) = run_step(forward, [(Sequence(list(range(1, 14))), PROMPT)])
    return logits


@pytest.mark.parametrize("budget", [7, 16, 64, 99])
def test_cutting_the_prompt_into_chunks_does_not_change_a_bit(
    forward: TorchForward, pages: Callable[[int], list[int]], budget: int
) -> None:
    expected = cold(forward)
    sequence = Sequence(pages(200))
    chunks = [
        run_step(forward, [(sequence, PROMPT[start : start + budget])])[0] for start in range(0, len(PROMPT), budget)
    ]
    assert np.array_equal(np.concatenate(chunks), expected)


def test_other_requests_in_the_batch_do_not_change_a_bit(
    forward: TorchForward, pages: Callable[[int], list[int]]
) -> None:
    expected = cold(forward)
    others = [(Sequence(pages(len(tokens))), tokens) for tokens in OTHERS]
    own = (Sequence(pages(200)), PROMPT)
    logits = run_step(forward, [*others[:3], own, *others[3:]])
    assert np.array_equal(logits[3], expected)


def test_decoding_after_a_prompt_equals_prefilling_the_whole_text(
    forward: TorchForward, pages: Callable[[int], list[int]]
) -> None:
    expected = cold(forward)
    sequence, other = Sequence(pages(200)), Sequence(pages(120))
    run_step(forward, [(sequence, PROMPT[:150]), (other, PROMPT[:100])])
    for position in range(150, 160):
        logits = run_step(forward, [(other, [7]), (sequence, [PROMPT[position]])])[1]
        assert np.array_equal(logits[0], expected[position])


def test_a_prefix_that_another_row_fills_in_the_same_step_is_read_whole(
    forward: TorchForward, pages: Callable[[int], list[int]]
) -> None:
    expected = cold(forward)
    shared = pages(64)
    first = Sequence([*shared, *pages(200 - 64)])
    second = Sequence([*shared, *pages(200 - 64)])
    second.num_computed = 64
    logits = run_step(forward, [(second, PROMPT[64:]), (first, PROMPT)])
    assert np.array_equal(logits[0], expected[64:])


def test_a_read_only_row_gives_the_same_logits_and_leaves_the_storage_alone(forward: TorchForward) -> None:
    expected = cold(forward)
    before = [layer.clone() for layer in forward.kv_layers]
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
    assert all(torch.equal(a, b) for a, b in zip(before, forward.kv_layers, strict=True))


def test_poison_in_unused_slots_does_not_reach_the_logits(model_path: Path) -> None:
    forward = open_forward(model_path)
    expected = cold(forward)
    for layer in forward.kv_layers:
        layer[1:] = torch.nan
    assert np.array_equal(cold(forward), expected)
    assert not any(layer[0].any() for layer in forward.kv_layers)


def test_a_row_of_poison_does_not_reach_the_other_rows(
    forward: TorchForward, pages: Callable[[int], list[int]]
) -> None:
    expected = cold(forward)
    bad = Sequence([40, 41])
    bad.num_computed = 16
    saved = [layer[40].clone() for layer in forward.kv_layers]
    for layer in forward.kv_layers:
        layer[40] = torch.nan
    own = Sequence(list(range(1, 14)))
    logits = run_step(forward, [(bad, [5, 6]), (own, PROMPT)])
    for layer, page in zip(forward.kv_layers, saved, strict=True):
        layer[40:42] = page
    assert np.isnan(logits[0]).all()
    assert np.array_equal(logits[1], expected)


def test_the_number_of_threads_does_not_change_a_bit(forward: TorchForward) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = cold(forward)
        torch.set_num_threads(2)
        assert np.array_equal(alone, cold(forward))
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small_forward(tmp_path_factory: pytest.TempPathFactory) -> TorchForward:
    path = tmp_path_factory.mktemp("small")
    save_model("llama2", path)
    return open_forward(path, num_blocks=4)


def one_row(**changes: int) -> dict[str, object]:
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


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("token_ids", {"token_ids": np.array([5, 300, 7], np.int32)}),
        ("token_ids", {"token_ids": np.array([5, -1, 7], np.int32)}),
        ("token_ids", {"token_ids": np.array([5, 6], np.int32)}),
        ("logit_rows", {"logit_rows": np.array([3], np.int32)}),
        ("page_size", one_row(page_size=8)),
        ("kv_indices", one_row(page=5)),
        ("positions", one_row(start=64)),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_argument_named(
    small_forward: TorchForward, argument: str, changes: dict[str, object]
) -> None:
    arguments = one_row() | changes
    with pytest.raises(ValueError, match=rf"^{argument}:"):
        small_forward.forward(**arguments)  # type: ignore[arg-type]


def test_no_logits_and_no_tokens_are_valid_requests(small_forward: TorchForward) -> None:
    none = np.empty(0, np.int32)
    arguments = one_row() | {"logit_rows": none}
    assert small_forward.forward(**arguments).shape == (0, 300)  # type: ignore[arg-type]
    table = np.zeros((1, 1), np.int32)
    metadata = build_metadata(
        starts=[], num_tokens=[], block_tables=table, table_rows=[], read_only=[], page_size=BLOCK
    )
    assert small_forward.forward(none, metadata, none).shape == (0, 300)


def test_a_type_that_is_not_served_is_refused(tmp_path: Path) -> None:
    save_model("llama2", tmp_path)
    with pytest.raises(ModelError, match="float16"):
        TorchForward(open_checkpoint(tmp_path), num_blocks=4, block_size=BLOCK, dtype="float16")


def test_loading_tells_how_far_it_is(tmp_path: Path) -> None:
    save_model("llama2", tmp_path)
    told: list[tuple[str, float]] = []
    TorchForward(open_checkpoint(tmp_path), num_blocks=4, block_size=BLOCK, progress=lambda *step: told.append(step))
    fractions = [fraction for stage, fraction in told if stage == "load weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
