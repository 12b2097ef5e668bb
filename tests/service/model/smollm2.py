"""The built-in model, opened once and written out as a Hugging Face directory through our own checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from headstart.model.weights import Checkpoint
from safetensors.numpy import save_file


def write_hugging_face(checkpoint: Checkpoint, directory: Path) -> None:
    """config.json and model.safetensors in float32, with what the checkpoint says."""
    config = checkpoint.config
    tensors = {name: np.ascontiguousarray(checkpoint.tensor(name)) for name in checkpoint.tensor_names}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    description = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(description))
