"""How much memory the KV storage takes, and its shape. Arithmetic only: whoever runs the model allocates it."""

from __future__ import annotations

from headstart.model.config import ModelConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "quantized": 2}
"""Of a number in the KV storage and of a weight that is not quantised, by the dtype of the model."""


def kv_bytes_per_block(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes of `block_size` tokens' keys and values over all layers. `dtype` is a key of DTYPE_BYTES."""
    values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return values_per_token * block_size * DTYPE_BYTES[dtype]


def kv_layer_shape(config: ModelConfig, *, num_blocks: int, block_size: int) -> tuple[int, int, int, int, int]:
    """[pages, K or V, block, kv_heads, head_dim] of one layer. Page 0 is extra: it stays zero for ever."""
    return (num_blocks + 1, 2, block_size, config.num_kv_heads, config.head_dim)
