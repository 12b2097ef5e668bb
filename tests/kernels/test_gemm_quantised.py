"""Linear layers on weights that stay in GGUF's blocks; the gguf package says what the blocks mean."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from headstart_kernels import _native
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.gemm_cases import from_bf16, random_floats, to_bf16

ISAS = _native.available_isas()
TYPES = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_1": gguf.GGMLQuantizationType.Q4_1}
ONE_THREAD = _native.ThreadPool(1)
TWO_THREADS = _native.ThreadPool(2)


def random_blocks(rng: np.random.Generator, weight_type: str, n: int, num_blocks: int) -> Any:
    """uint8 [n, num_blocks * block bytes]: any quants, scales and minima of ordinary size."""
    num_scales, num_quants = {"q8_0": (1, 32), "q4_1": (2, 16)}[weight_type]
    scales = rng.standard_normal((n, num_blocks, num_scales)).astype(np.float16).view(np.uint8)
    quants = rng.integers(0, 256, (n, num_blocks, num_quants), np.uint8)
    return np.concatenate([scales, quants], axis=2).reshape(n, -1)


def error_bound(x: Any, w: Any, num_quants: int) -> Any:
    """The chain adds d * (sum of q x) and m * (sum of x): both may be as large as all their parts together."""
    largest = np.abs(w.reshape(len(w), -1, 32)).max(axis=2).repeat(32, axis=1).astype(np.float64)
    return 3 * np.abs(x).astype(np.float64) @ largest.T * (num_quants + 40) * 2.0**-23


def pack(blocks: Any, k: int, weight_type: str) -> Any:
    return _native.pack_blocks(_native.HugeArena(), blocks, k, weight_type)


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
    x = to_bf16(random_floats(rng, m, num_blocks * 32))
    w = gguf.quants.dequantize(blocks, TYPES[weight_type]).reshape(n, -1)
    y = multiply(pack(blocks, num_blocks * 32, weight_type), x, isa, bias=bias)
    exact = from_bf16(x).astype(np.float64) @ w.astype(np.float64).T + bias
    assert np.all(np.abs(y - exact) <= error_bound(from_bf16(x), w, num_blocks * 32) + np.abs(bias) * 2.0**-22)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("position", range(32))
def test_each_place_of_a_block_holds_its_own_weight(isa: str, weight_type: str, position: int) -> None:
    rng = np.random.default_rng(position)
    blocks = random_blocks(rng, weight_type, 17, 2)
    x = np.zeros((1, 64), np.float32)
    x[0, 32 + position] = 1
    w = gguf.quants.dequantize(blocks, TYPES[weight_type]).reshape(17, -1)
    y = multiply(pack(blocks, 64, weight_type), to_bf16(x), isa)
    np.testing.assert_allclose(y[0], w[:, 32 + position], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(1)
    w = pack(random_blocks(rng, weight_type, 150, 10), 320, weight_type)
    x = to_bf16(random_floats(rng, 97, 320))
    alone = np.concatenate([multiply(w, x[i : i + 1], isa, pool=ONE_THREAD) for i in range(len(x))])
    for m in (2, 3, 4, 6, 7, 12, 13, 33, 97):
        for pool in (ONE_THREAD, TWO_THREADS):
            assert np.array_equal(multiply(w, x[-m:], isa, pool=pool), alone[-m:])


@pytest.mark.parametrize("isa", ISAS)
def test_scales_keep_the_value_of_every_finite_half_float(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    blocks = np.zeros((len(halves), 34), np.uint8)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    blocks[:, 2] = 1
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 1
    y = multiply(pack(blocks, 32, "q8_0"), to_bf16(x), isa)
    assert np.array_equal(y[0], halves.astype(np.float32))


def test_blocks_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="k: must be a multiple of 32"):
        pack(np.zeros((2, 34), np.uint8), 40, "q8_0")
    with pytest.raises(ValueError, match="blocks: a row must have 20 bytes"):
        pack(np.zeros((2, 34), np.uint8), 32, "q4_1")
    with pytest.raises(ValueError, match="type: blocks are packed as"):
        pack(np.zeros((2, 34), np.uint8), 32, "bf16")
