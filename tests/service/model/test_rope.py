"""The rotary angles against those of transformers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import transformers
from headstart.model.config import RopeScaling, from_hf
from headstart.model.rope import rope_frequencies, rope_table
from service.model.tiny_models import make_model


@pytest.mark.parametrize("name", ["llama2", "llama3", "llama-linear-rope", "qwen3"])
def test_frequencies_equal_those_of_transformers(name: str) -> None:
    model = make_model(name)
    config = from_hf(model.config.to_dict())
    expected = model.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(rope_frequencies(config), expected, atol=0, rtol=1e-6)


def test_factors_of_a_gguf_file_divide_the_frequencies() -> None:
    plain = from_hf(transformers.LlamaConfig(hidden_size=8, num_attention_heads=2).to_dict())
    scaled = dataclasses.replace(plain, rope_scaling=RopeScaling(kind="factors", factors=(1.0, 4.0)))
    assert (rope_frequencies(plain) / rope_frequencies(scaled)).tolist() == [1.0, 4.0]


def test_a_table_holds_cosine_and_sine_of_position_times_frequency() -> None:
    config = from_hf(transformers.LlamaConfig(hidden_size=8, num_attention_heads=2).to_dict())
    cos, sin = rope_table(config, 100)
    assert cos.shape == sin.shape == (100, 2)
    assert cos.dtype == sin.dtype == np.float32
    angles = 99.0 * rope_frequencies(config).astype(np.float64)
    np.testing.assert_allclose(cos[99], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sin[99], np.sin(angles), atol=1e-5)
