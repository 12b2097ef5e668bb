"""The built-in model end to end: its GGUF file, our forward pass, and transformers on the same weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from headstart.model.config import from_hf
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import Checkpoint, open_checkpoint
from headstart.runner.torch_runner import TorchForward
from service.model.smollm2 import write_hugging_face
from service.model.tiny_models import BLOCK, Sequence, run_step

NUM_PROMPTS, PROMPT_LEN, NUM_NEW = 10, 64, 8


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve_source(BUILT_IN))


@pytest.fixture(scope="module")
def directory(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2")
    write_hugging_face(checkpoint, path)
    return path


def test_the_description_is_that_of_smollm2_135m(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim)
    assert sizes == (30, 576, 9, 3, 64)
    assert (config.vocab_size, config.intermediate_size, config.context_length) == (49152, 1536, 8192)
    assert (config.rms_norm_eps, config.rope_theta, config.tie_embeddings) == (1e-5, 100000.0, True)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert checkpoint.directory is None
    assert checkpoint.gguf_metadata is not None
    assert len(checkpoint.gguf_metadata["tokenizer.ggml.tokens"]) == 49152


def test_tensors_are_unpacked_renamed_and_put_in_the_order_of_hugging_face(checkpoint: Checkpoint) -> None:
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(str(resolve_source(BUILT_IN))).tensors}

    def unpacked(name: str) -> np.ndarray[Any, Any]:
        return gguf.dequantize(stored[name].data, stored[name].tensor_type)

    assert len(checkpoint.tensor_names) == len(stored) == 272
    assert np.array_equal(checkpoint.tensor("model.embed_tokens.weight"), unpacked("token_embd.weight"))
    assert np.array_equal(checkpoint.tensor("model.layers.7.mlp.down_proj.weight"), unpacked("blk.7.ffn_down.weight"))
    interleaved = unpacked("blk.7.attn_q.weight")
    # Row 2 i + s of a head in the file is its row 32 s + i here.
    ours = checkpoint.tensor("model.layers.7.self_attn.q_proj.weight")
    for head, pair, side in ((0, 0, 0), (0, 1, 0), (3, 5, 1), (8, 31, 1)):
        assert np.array_equal(ours[head * 64 + side * 32 + pair], interleaved[head * 64 + pair * 2 + side])


def test_the_written_directory_is_the_same_model(checkpoint: Checkpoint, directory: Path) -> None:
    again = open_checkpoint(directory)
    assert again.tensor_names == checkpoint.tensor_names
    assert again.fingerprint != checkpoint.fingerprint
    for name in again.tensor_names[:12]:
        assert np.array_equal(again.tensor(name), checkpoint.tensor(name))
    assert from_hf(transformers.AutoConfig.from_pretrained(directory).to_dict()).rope_theta == 100000.0


def greedy_batch(forward: TorchForward, prompts: list[list[int]]) -> list[list[int]]:
    width = -(-(PROMPT_LEN + NUM_NEW) // BLOCK)
    sequences = [Sequence(list(range(1 + i * width, 1 + (i + 1) * width))) for i in range(len(prompts))]
    tokens, outputs = prompts, [[] for _ in prompts]
    for _ in range(NUM_NEW):
        logits = run_step(forward, list(zip(sequences, tokens, strict=True)), all_logits=False)
        tokens = [[int(row[0].argmax())] for row in logits]
        outputs = [output + token for output, token in zip(outputs, tokens, strict=True)]
    return outputs


def test_ten_prompts_give_the_greedy_tokens_of_transformers(checkpoint: Checkpoint, directory: Path) -> None:
    prompts = np.random.default_rng(3).integers(17, 49152, (NUM_PROMPTS, PROMPT_LEN))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        generated = model.generate(
            torch.from_numpy(prompts),
            attention_mask=torch.ones_like(torch.from_numpy(prompts)),
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    forward = TorchForward(checkpoint, num_blocks=64, block_size=BLOCK)
    assert greedy_batch(forward, prompts.tolist()) == generated[:, PROMPT_LEN:].tolist()


def test_batch_chunks_and_pages_do_not_change_a_bit_of_the_logits(checkpoint: Checkpoint) -> None:
    prompt, other = (np.random.default_rng(4).integers(17, 49152, n).tolist() for n in (150, 40))
    forward = TorchForward(checkpoint, num_blocks=64, block_size=BLOCK)
    (cold,) = run_step(forward, [(Sequence(list(range(1, 11))), prompt)])
    for edges in ([0, 16, 150], [0, 64, 128, 149, 150]):
        row = Sequence(list(range(30, 20, -1)))
        chunks = [run_step(forward, [(row, prompt[start:end])])[0] for start, end in pairwise(edges)]
        assert np.array_equal(np.concatenate(chunks), cold)
    batch = [(Sequence([61, 62, 63]), other), (Sequence(list(range(40, 50))), prompt)]
    assert np.array_equal(run_step(forward, batch)[1], cold)
