"""Tiny random models of every family, saved by transformers, and the steps to run them through our own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from headstart.model.weights import open_checkpoint
from headstart.runner.model_runner import Forward
from headstart.runner.torch_runner import TorchForward
from headstart_kernels.metadata import build_metadata

BLOCK = 16

_SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 6}),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama-with-biases": ("Llama", {"attention_bias": True}),
    "smollm2": (
        "Llama",
        {"tie_word_embeddings": True, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None, "rms_norm_eps": 1e-5}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("Qwen3", {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 1}),
}


def make_model(name: str) -> Any:
    """A random model whose biases and norms are random too, so that forgetting one shows."""
    architecture, changes = FAMILIES[name]
    config = getattr(transformers, f"{architecture}Config")(**(_SIZES | changes))
    torch.manual_seed(0)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or key.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def save_model(name: str, directory: Path, **options: Any) -> Any:
    model = make_model(name)
    model.save_pretrained(directory, **options)
    return model


def open_forward(path: Path, *, num_blocks: int = 64, dtype: str = "float32") -> TorchForward:
    return TorchForward(open_checkpoint(path), num_blocks=num_blocks, block_size=BLOCK, dtype=dtype)


class Sequence:
    """One request run by hand: its pages and how many of its tokens are in the cache."""

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages
        self.num_computed = 0


def run_step(
    forward: Forward, rows: list[tuple[Sequence, list[int]]], *, all_logits: bool = True
) -> list[np.ndarray[Any, Any]]:
    """Advance each sequence by its tokens; the logits [tokens or 1, vocab] of each row."""
    ends = np.cumsum([len(tokens) for _, tokens in rows], dtype=np.int32)
    wanted = np.arange(ends[-1], dtype=np.int32) if all_logits else ends - 1
    logits = run_step_for(forward, rows, wanted)
    return np.split(logits, ends[:-1] if all_logits else np.arange(1, len(rows)))


def run_step_for(
    forward: Forward, rows: list[tuple[Sequence, list[int]]], wanted: np.ndarray[Any, np.dtype[np.int32]]
) -> np.ndarray[Any, Any]:
    """Advance each sequence by its tokens; the logits [n, vocab] of the tokens `wanted` [n] of the batch."""
    width = max(len(sequence.pages) for sequence, _ in rows)
    tables = np.zeros((len(rows), width), np.int32)
    for line, (sequence, _) in enumerate(rows):
        tables[line, : len(sequence.pages)] = sequence.pages
    metadata = build_metadata(
        starts=[sequence.num_computed for sequence, _ in rows],
        num_tokens=[len(tokens) for _, tokens in rows],
        block_tables=tables,
        table_rows=range(len(rows)),
        read_only=[False] * len(rows),
        page_size=BLOCK,
    )
    token_ids = np.concatenate([np.asarray(tokens, np.int32) for _, tokens in rows])
    logits = forward.forward(token_ids, metadata, wanted)
    for sequence, tokens in rows:
        sequence.num_computed += len(tokens)
    return logits


def greedy(forward: Forward, prompt: list[int], num_tokens: int, pages: list[int]) -> list[int]:
    sequence = Sequence(pages)
    output: list[int] = []
    tokens = prompt
    while len(output) < num_tokens:
        (logits,) = run_step(forward, [(sequence, tokens)], all_logits=False)
        output.append(int(logits[0].argmax()))
        tokens = output[-1:]
    return output
