"""Linear layers on weights that stay in GGUF's blocks; the gguf package says what the blocks mean."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from headstart_kernels import _native
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.gemm_cases import random_floats

ISAS = _native.available_isas()
Q = gguf.GGMLQuantizationType
TYPES = {"q8_0": Q.Q8_0, "q4_0": Q.Q4_0, "q4_1": Q.Q4_1}
ONE_THREAD = _native.ThreadPool(1)
TWO_THREADS = _native.ThreadPool(2)


def random_blocks(rng: np.random.Generator, weight_type: str, n: int, num_blocks: int) -> Any:
    """uint8 [n, num_blocks * block bytes]: any quants, scales and minima of ordinary size."""
    num_scales, num_quants = {"q8_0": (1, 32), "q4_0": (1, 16), "q4_1": (2, 16)}[weight_type]
    scales = rng.standard_normal((n, num_blocks, num_scales)).astype(np.float16).view(np.uint8)
    quants = rng.integers(0, 256, (n, num_blocks, num_quants), np.uint8)
    return np.concatenate([scales, quants], axis=2).reshape(n, -1)


def error_bound(x: Any, w: Any) -> Any:
    """x is rounded to 1/32767 of its row's largest; then the chain adds d * (sum of q x) and m * (sum of x) block after
    block, each of which may be as large as all its parts together."""
    x, w = np.abs(x).astype(np.float64), np.abs(w).astype(np.float64)
    of_input = x.max(axis=1, keepdims=True, initial=0) / 65534 * w.sum(axis=1)
    largest = w.reshape(len(w), -1, 32).max(axis=2).repeat(32, axis=1)
    return 1.001 * of_input + 3 * x @ largest.T * (w.shape[1] / 16 + 8) * 2.0**-23


def dequantise(blocks: Any, weight_type: str) -> Any:
    return gguf.quants.dequantize(blocks, TYPES[weight_type]).reshape(len(blocks), -1)


def pack(blocks: Any, weight_type: str) -> Any:
    return _native.pack_blocks(_native.HugeArena(), blocks, weight_type)


def multiply(w: Any, x: Any, isa: str, *, bias: Any = None, pool: Any = TWO_THREADS) -> Any:
    y = np.full((len(x), w.n), np.nan, np.float32)
    _native.gemm(pool, w, x, y, bias=bias, isa=isa)
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
@settings(max_examples=40, deadline=None)
@given(m=st.integers(0, 20), n=st.integers(1, 150), num_blocks=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_product_is_what_the_dequantised_weight_gives_in_float64(
    isa: str, weight_type: str, m: int, n: int, num_blocks: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks, bias = random_blocks(rng, weight_type, n, num_blocks), random_floats(rng, n)
    x, w = random_floats(rng, m, num_blocks * 32), dequantise(blocks, weight_type)
    y = multiply(pack(blocks, weight_type), x, isa, bias=bias)
    exact = x.astype(np.float64) @ w.astype(np.float64).T + bias
    assert np.all(np.abs(y - exact) <= error_bound(x, w) + np.abs(bias) * 2.0**-22)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("position", range(32))
def test_each_place_of_a_block_holds_its_own_weight(isa: str, weight_type: str, position: int) -> None:
    rng = np.random.default_rng(position)
    blocks = random_blocks(rng, weight_type, 17, 2)
    x = np.zeros((1, 64), np.float32)
    x[0, 32 + position] = 1
    y = multiply(pack(blocks, weight_type), x, isa)
    np.testing.assert_allclose(y[0], dequantise(blocks, weight_type)[:, 32 + position], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(1)
    w = pack(random_blocks(rng, weight_type, 150, 10), weight_type)
    x = random_floats(rng, 97, 320)
    alone = np.concatenate([multiply(w, x[i : i + 1], isa, pool=ONE_THREAD) for i in range(len(x))])
    for m in (2, 3, 4, 6, 7, 12, 13, 33, 97):
        for pool in (ONE_THREAD, TWO_THREADS):
            assert np.array_equal(multiply(w, x[-m:], isa, pool=pool), alone[-m:])


@pytest.mark.parametrize("weight_type", TYPES)
def test_instruction_sets_that_fuse_multiply_and_add_give_the_same_bits(weight_type: str) -> None:
    rng = np.random.default_rng(2)
    w = pack(random_blocks(rng, weight_type, 150, 10), weight_type)
    x = random_floats(rng, 13, 320)
    fusing = [isa for isa in ISAS if isa != "scalar"]
    results = [multiply(w, x, isa) for isa in fusing]
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_an_input_that_is_no_number_spoils_its_own_row_alone(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(3)
    w = pack(random_blocks(rng, weight_type, 40, 3), weight_type)
    x = random_floats(rng, 6, 96)
    clean = multiply(w, x, isa)
    x[1, 95], x[3, 0], x[4, 40] = np.nan, np.inf, -np.inf
    y = multiply(w, x, isa)
    assert np.isnan(y[[1, 3, 4]]).all()
    assert np.array_equal(y[[0, 2, 5]], clean[[0, 2, 5]])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-25, 1e25, 3e38])
def test_a_row_of_any_size_keeps_its_value(isa: str, size: float) -> None:
    blocks = np.zeros((3, 34), np.uint8)
    blocks[:, :2] = np.float16(0.5).view(np.uint16).reshape(1, 1).view(np.uint8)
    blocks[:, 2] = 1
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = -size
    y = multiply(pack(blocks, "q8_0"), x, isa)
    np.testing.assert_allclose(y[0], x[0, 0] / 2, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("isa", ISAS)
def test_scales_keep_the_value_of_every_finite_half_float(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    blocks = np.zeros((len(halves), 34), np.uint8)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    blocks[:, 2] = 1
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 32767
    y = multiply(pack(blocks, "q8_0"), x, isa)
    assert np.array_equal(y[0], halves.astype(np.float32) * np.float32(32767))


@pytest.mark.parametrize("isa", ISAS)
def test_a_four_bit_block_without_minimum_keeps_its_value_at_every_scale(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    halves = halves[np.abs(halves.astype(np.float32)) * 8 < 65504]
    blocks = np.zeros((len(halves), 18), np.uint8)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    blocks[:, 2] = 3
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 32767
    y = multiply(pack(blocks, "q4_0"), x, isa)
    np.testing.assert_allclose(y[0], halves.astype(np.float64) * (-5 * 32767), rtol=1e-6)


def test_rows_that_hold_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="rows: must hold whole blocks of q8_0"):
        pack(np.zeros((2, 40), np.uint8), "q8_0")
    with pytest.raises(ValueError, match="type: blocks are packed from q8_0, q4_0 or q4_1, not from bf16"):
        pack(np.zeros((2, 34), np.uint8), "bf16")
    with pytest.raises(ValueError, match="k: must be at least 1"):
        pack(np.zeros((2, 0), np.uint8), "q8_0")
