"""The built-in model, natively: the tokens of float32, and how far bfloat16 strays from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import Checkpoint, open_checkpoint
from headstart.runner.model_runner import Forward
from headstart.runner.native_runner import Cpu, NativeForward
from headstart.runner.torch_runner import TorchForward
from service.model.tiny_models import BLOCK, Sequence, run_step

NUM_PROMPTS, PROMPT_LEN, NUM_NEW = 10, 32, 64
WIDTH = -(-(PROMPT_LEN + NUM_NEW) // BLOCK)
NUM_BLOCKS = NUM_PROMPTS * WIDTH

# Kullback-Leibler divergence from float32 in nats a token, over teacher-forced positions.
MAX_DIVERGENCE = {"bfloat16": 3e-4, "quantized": 1e-4}
MIN_AGREEMENT = 0.98


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve_source(BUILT_IN))


def sequences() -> list[Sequence]:
    return [Sequence(list(range(1 + i * WIDTH, 1 + (i + 1) * WIDTH))) for i in range(NUM_PROMPTS)]


def generate(forward: Forward, prompts: list[list[int]]) -> list[list[int]]:
    """Prompts and what follows them greedily, all in one batch."""
    rows, tokens, texts = sequences(), prompts, prompts
    for _ in range(NUM_NEW):
        logits = run_step(forward, list(zip(rows, tokens, strict=True)), all_logits=False)
        tokens = [[int(row[0].argmax())] for row in logits]
        texts = [text + token for text, token in zip(texts, tokens, strict=True)]
    return texts


@pytest.fixture(scope="module")
def texts(checkpoint: Checkpoint) -> list[list[int]]:
    prompts = np.random.default_rng(3).integers(17, 49152, (NUM_PROMPTS, PROMPT_LEN)).tolist()
    forward = NativeForward(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK, dtype="float32")
    return generate(forward, prompts)


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint, texts: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    """The logits of torch in float32 at every position that chose a token, [NUM_NEW, vocab] a text."""
    forward = TorchForward(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK)
    rows = [(row, text[:-1]) for row, text in zip(sequences(), texts, strict=True)]
    return [logits[PROMPT_LEN - 1 :].copy() for logits in run_step(forward, rows)]


def test_ten_prompts_give_the_greedy_tokens_of_torch(
    texts: list[list[int]], expected: list[np.ndarray[Any, Any]]
) -> None:
    for text, logits in zip(texts, expected, strict=True):
        assert logits.argmax(axis=1).tolist() == text[PROMPT_LEN:]


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", MAX_DIVERGENCE)
def test_shorter_types_stay_near_float32_at_every_position(
    checkpoint: Checkpoint, texts: list[list[int]], expected: list[np.ndarray[Any, Any]], dtype: str
) -> None:
    forward = NativeForward(checkpoint, num_blocks=NUM_BLOCKS, block_size=BLOCK, dtype=dtype)
    rows = [(row, text[:-1]) for row, text in zip(sequences(), texts, strict=True)]
    divergences, agreements = [], []
    for logits, exact in zip(run_step(forward, rows), expected, strict=True):
        ours, theirs = log_softmax(logits[PROMPT_LEN - 1 :]), log_softmax(exact)
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))
        agreements.append(ours.argmax(axis=1) == theirs.argmax(axis=1))
    assert np.concatenate(divergences).size == NUM_PROMPTS * NUM_NEW
    assert np.concatenate(agreements).mean() >= MIN_AGREEMENT
    assert np.concatenate(divergences).mean() <= MAX_DIVERGENCE[dtype]


def test_the_files_own_weights_give_the_same_bits_on_any_number_of_threads(checkpoint: Checkpoint) -> None:
    prompt = np.random.default_rng(4).integers(17, 49152, 200).tolist()
    pages = list(range(1, 1 + -(-len(prompt) // BLOCK)))
    outputs = []
    for num_threads in (1, 2, 3):
        cpu = Cpu(num_threads=num_threads)
        forward = NativeForward(checkpoint, num_blocks=len(pages), block_size=BLOCK, dtype="quantized", cpu=cpu)
        outputs.append(run_step(forward, [(Sequence(pages), prompt)])[0].copy())
    assert np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(outputs[0], outputs[2])
