from __future__ import annotations

from headstart.model.config import from_hf
from headstart.model.kv import kv_bytes_per_block, kv_layer_shape

SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}


def test_a_block_of_smollm2_in_bfloat16_takes_368640_bytes() -> None:
    config = from_hf(SMOLLM2)
    assert kv_bytes_per_block(config, 16, "bfloat16") == 368_640
    assert kv_bytes_per_block(config, 16, "float32") == 737_280
    assert 100 * 2**20 // kv_bytes_per_block(config, 16, "bfloat16") == 284


def test_the_storage_has_the_null_page_on_top_of_the_usable_blocks() -> None:
    assert kv_layer_shape(from_hf(SMOLLM2), num_blocks=7, block_size=16) == (8, 2, 16, 3, 64)
