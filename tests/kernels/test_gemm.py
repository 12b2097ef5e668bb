"""Linear layers on packed weights: exact enough for every shape, and the same bits for a row in every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headstart_kernels import _native
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.gemm_cases import error_bound, exact_product, from_bf16, random_floats, to_bf16

ISAS = _native.available_isas()
TYPES = ["f32", "bf16"]
TWO_THREADS = _native.ThreadPool(2)
ONE_THREAD = _native.ThreadPool(1)


def make_input(rng: np.random.Generator, weight_type: str, m: int, k: int) -> Any:
    x = random_floats(rng, m, k)
    return x if weight_type == "f32" else to_bf16(x)


def as_floats(values: Any) -> Any:
    return values if values.dtype == np.float32 else from_bf16(values)


def multiply(w: Any, x: Any, isa: str, *, bias: Any = None, pool: Any = TWO_THREADS, next_weight: Any = None) -> Any:
    y = np.full((len(x), w.n), np.nan, np.float32)
    _native.gemm(pool, w, x, y, bias=bias, next=next_weight, isa=isa)
    return y


def pack(w: Any, weight_type: str) -> Any:
    return _native.pack(_native.HugeArena(), w.view(np.uint8), "f32", weight_type)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 40), n=st.integers(1, 150), k=st.integers(1, 130), seed=st.integers(0, 99), biased=st.booleans()
)
def test_a_product_is_what_float64_gives_within_the_rounding_of_its_chain(
    isa: str, weight_type: str, m: int, n: int, k: int, seed: int, biased: bool
) -> None:
    rng = np.random.default_rng(seed)
    w, bias = random_floats(rng, n, k), random_floats(rng, n) if biased else None
    x = make_input(rng, weight_type, m, k)
    y = multiply(pack(w, weight_type), x, isa, bias=bias)
    used = w if weight_type == "f32" else from_bf16(to_bf16(w))
    bound = error_bound(as_floats(x), used) + (0 if bias is None else np.abs(bias) * 2.0**-22)
    assert np.all(np.abs(y - exact_product(as_floats(x), used, bias)) <= bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize(("n", "k"), [(150, 320), (75, 33), (16, 1536)])
def test_a_row_has_the_same_bits_in_every_batch_and_on_every_number_of_threads(
    isa: str, weight_type: str, n: int, k: int
) -> None:
    rng = np.random.default_rng(1)
    w = pack(random_floats(rng, n, k), weight_type)
    x = make_input(rng, weight_type, 97, k)
    alone = np.concatenate([multiply(w, x[i : i + 1], isa, pool=ONE_THREAD) for i in range(len(x))])
    for m in (2, 3, 4, 5, 6, 7, 8, 12, 13, 25, 64, 96, 97):
        for pool in (ONE_THREAD, TWO_THREADS):
            assert np.array_equal(multiply(w, x[:m], isa, pool=pool), alone[:m])
            assert np.array_equal(multiply(w, x[-m:], isa, pool=pool), alone[-m:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_a_product_may_be_added_to_what_is_there(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(3)
    w, x = pack(random_floats(rng, 75, 64), weight_type), make_input(rng, weight_type, 9, 64)
    bias, before = random_floats(rng, 75), random_floats(rng, 9, 75)
    y = before.copy()
    _native.gemm(TWO_THREADS, w, x, y, bias=bias, isa=isa, adds=True)
    assert np.array_equal(y, before + multiply(w, x, isa, bias=bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_fetching_the_next_weight_changes_nothing(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(2)
    w, following = (pack(random_floats(rng, n, 64), weight_type) for n in (100, 20))
    x = make_input(rng, weight_type, 9, 64)
    assert np.array_equal(multiply(w, x, isa, next_weight=following), multiply(w, x, isa))


@pytest.mark.parametrize("isa", ISAS)
def test_weights_packed_from_bf16_are_those_packed_from_the_same_floats(isa: str) -> None:
    rng = np.random.default_rng(3)
    halves, x = to_bf16(random_floats(rng, 50, 31)), to_bf16(random_floats(rng, 4, 31))
    from_halves = _native.pack(_native.HugeArena(), halves.view(np.uint8), "bf16", "bf16")
    assert np.array_equal(multiply(from_halves, x, isa), multiply(pack(from_bf16(halves), "bf16"), x, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", TYPES)
def test_a_value_that_is_not_finite_stays_in_its_row(isa: str, weight_type: str) -> None:
    rng = np.random.default_rng(4)
    w = pack(random_floats(rng, 40, 33), weight_type)
    x = make_input(rng, weight_type, 7, 33)
    clean = multiply(w, x, isa)
    x[3, 32] = np.nan if weight_type == "f32" else 0x7FC0
    y = multiply(w, x, isa)
    assert np.all(np.isnan(y[3]))
    assert np.array_equal(np.delete(y, 3, 0), np.delete(clean, 3, 0))


def test_rounding_to_bf16_goes_to_the_nearest_even_and_keeps_nan() -> None:
    values = np.array([1.00390625, 1.01171875, -3.4e38, 1.0000001, np.nan], np.float32)
    one = to_bf16(np.ones((1, 1), np.float32))
    rounded = multiply(pack(values[:, None], "bf16"), one, "scalar")[0]
    assert rounded[:4].tolist() == [1.0, 1.015625, -np.inf, 1.0]
    assert np.isnan(rounded[4])


def test_every_wrong_argument_is_named() -> None:
    w, bf16 = pack(np.ones((5, 4), np.float32), "f32"), pack(np.ones((5, 4), np.float32), "bf16")
    x, y = np.ones((2, 4), np.float32), np.empty((2, 5), np.float32)
    with pytest.raises(ValueError, match="x: must have 4 columns"):
        _native.gemm(TWO_THREADS, w, np.ones((2, 3), np.float32), y)
    with pytest.raises(ValueError, match="y: must have as many rows"):
        _native.gemm(TWO_THREADS, w, x, np.empty((3, 5), np.float32))
    with pytest.raises(ValueError, match="y: must have 5 columns"):
        _native.gemm(TWO_THREADS, w, x, np.empty((2, 6), np.float32))
    with pytest.raises(ValueError, match="bias: must have 5 entries"):
        _native.gemm(TWO_THREADS, w, x, y, bias=np.ones(4, np.float32))
    with pytest.raises(ValueError, match="x: must be bf16 as uint16 for bf16 weights"):
        _native.gemm(TWO_THREADS, bf16, x, y)
    with pytest.raises(ValueError, match="type: must be f32, bf16"):
        pack(np.ones((5, 4), np.float32), "int8")
    with pytest.raises(ValueError, match="n: must be at least 1"):
        pack(np.ones((0, 4), np.float32), "f32")
    with pytest.raises(ValueError, match="instruction set 'mmx' is unknown"):
        _native.gemm(TWO_THREADS, w, x, y, isa="mmx")
