from __future__ import annotations

from typing import Any

import pytest
from headstart.errors import ModelError
from headstart.model.config import RopeScaling, from_gguf, from_hf

HF: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GGUF: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.context_length": 512,
    "qwen3.embedding_length": 64,
    "qwen3.block_count": 2,
    "qwen3.feed_forward_length": 128,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "qwen3.rope.freq_base": 1000000.0,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 1,
}

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3_SCALING = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}, "torch_dtype": "bfloat16"},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}, "torch_dtype": "torch.bfloat16"},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, "dtype": "bfloat16"},
    ],
)
def test_both_spellings_of_transformers_mean_the_same(spelling: dict[str, Any]) -> None:
    config = from_hf(HF | spelling)
    assert (config.rope_theta, config.rope_scaling, config.dtype) == (5e5, LLAMA3_SCALING, "bfloat16")


def test_linear_scaling_is_read_in_the_old_spelling() -> None:
    config = from_hf(HF | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert config.rope_scaling == RopeScaling(kind="linear", factor=2.0)
    assert config.rope_theta == 10000.0


def test_head_dim_follows_from_the_sizes_unless_it_is_given() -> None:
    assert from_hf(HF).head_dim == 16
    assert from_hf(HF | {"head_dim": 40}).head_dim == 40
    assert from_hf(HF | {"head_dim": None}).head_dim == 16


def test_the_generation_config_knows_all_end_tokens() -> None:
    assert from_hf(HF).eos_token_ids == (2,)
    assert from_hf(HF, {"eos_token_id": [2, 7]}).eos_token_ids == (2, 7)
    assert from_hf(HF | {"eos_token_id": None}, {}).eos_token_ids == ()


def test_biases_and_norms_depend_on_the_family() -> None:
    qwen2, qwen3 = from_hf(HF | {"model_type": "qwen2"}), from_hf(HF | {"model_type": "qwen3"})
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.qk_norm) == (False, False, True)
    llama = from_hf(HF | {"attention_bias": True})
    assert (llama.qkv_bias, llama.out_bias) == (True, True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*llama, mistral"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"model_type": "mistral", "sliding_window": 128}, "sliding window of 128"),
        ({"model_type": "mistral", "max_position_embeddings": 32768}, "sliding window of 4096"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 128}, "sliding window of 128"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"num_key_value_heads": 3}, "kv heads"),
        ({"head_dim": 15}, "head_dim"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        from_hf(HF | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 32768},
        {"model_type": "mistral", "sliding_window": 512},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 128},
        {"model_type": "qwen3", "sliding_window": 128},
    ],
)
def test_a_window_that_never_cuts_is_served(changes: dict[str, Any]) -> None:
    assert from_hf(HF | changes).family == changes["model_type"]


def test_gguf_metadata_gives_the_same_kind_of_description() -> None:
    config = from_gguf(GGUF)
    assert (config.family, config.head_dim, config.vocab_size) == ("qwen3", 32, 3)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-6, 1e6)
    assert (config.qk_norm, config.qkv_bias, config.tie_embeddings) == (True, False, True)
    assert (config.bos_token_id, config.eos_token_ids) == (None, (1, 2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"qwen3.block_count": None}, "block_count"),
        ({"qwen3.attention.head_count_kv": [2, 1]}, "head_count_kv"),
        ({"qwen3.rope.scaling.type": "yarn"}, "yarn"),
        ({"qwen3.rope.dimension_count": 16}, "dimension_count"),
        ({"qwen3.expert_count": 8}, "expert_count"),
        ({"qwen3.attention.sliding_window": 64}, "sliding window of 64"),
        ({"qwen3.attention.head_count": 0}, "head_count"),
        ({"qwen3.block_count": float("nan")}, "block_count"),
        ({"qwen3.rope.freq_base": float("inf")}, "freq_base"),
        ({"qwen3.attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps"),
    ],
)
def test_gguf_metadata_that_is_not_served_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        from_gguf(GGUF | changes)
