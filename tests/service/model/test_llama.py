"""The forward pass against Hugging Face transformers, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from service.model.tiny_models import FAMILIES, Sequence, greedy, open_forward, run_step, save_model

PROMPT = np.random.default_rng(0).integers(3, 300, 45).tolist()


def greedy_of(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    with torch.inference_mode():
        generated = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", list(FAMILIES))
def test_logits_and_greedy_tokens_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save_model(name, tmp_path)
    forward = open_forward(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    (logits,) = run_step(forward, [(Sequence([5, 2, 9]), PROMPT)])
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    model.generation_config.eos_token_id = None
    assert greedy(forward, PROMPT, 20, [7, 1, 3, 4, 6]) == greedy_of(model, PROMPT, 20)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    save_model("llama3", tmp_path)
    exact, rounded = open_forward(tmp_path), open_forward(tmp_path, dtype="bfloat16")
    (expected,) = run_step(exact, [(Sequence([1, 2, 3]), PROMPT)])
    (logits,) = run_step(rounded, [(Sequence([1, 2, 3]), PROMPT)])
    assert logits.dtype == np.float32
    error = np.abs(logits - expected).mean() / np.abs(expected).mean()
    assert 0 < error < 0.05
