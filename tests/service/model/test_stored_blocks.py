"""What weights take in memory, and which files have some that stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from headstart.model.layout import EMBEDDING
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.stored_blocks import has_blocks, weight_bytes
from headstart.model.weights import Checkpoint, open_checkpoint
from service.model.tiny_models import save_model

NUM_EMBEDDINGS = 49152 * 576


@pytest.fixture(scope="module")
def built_in() -> Checkpoint:
    return open_checkpoint(resolve_source(BUILT_IN))


def test_weights_that_stay_as_stored_take_a_third_of_the_memory(built_in: Checkpoint) -> None:
    assert has_blocks(built_in)
    assert weight_bytes(built_in, "quantized", [EMBEDDING]) == NUM_EMBEDDINGS * 34 // 32
    assert weight_bytes(built_in, "bfloat16", [EMBEDDING]) == NUM_EMBEDDINGS * 2
    assert weight_bytes(built_in, "float32") == 2 * weight_bytes(built_in, "bfloat16")
    assert 0.33 < weight_bytes(built_in, "quantized") / weight_bytes(built_in, "bfloat16") < 0.4


def test_a_model_of_plain_numbers_has_no_blocks(tmp_path: Path) -> None:
    save_model("llama3", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert not has_blocks(checkpoint)
    assert weight_bytes(checkpoint, "quantized") == weight_bytes(checkpoint, "bfloat16")
