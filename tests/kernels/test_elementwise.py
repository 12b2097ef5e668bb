"""What is done to one row: norms, rotation, activation, the write of K/V; every instruction set, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from headstart_kernels import _native
from kernels.attention_cases import to_panels

Array = np.ndarray[Any, Any]

ISAS = _native.available_isas()
WIDTHS = [1, 3, 8, 16, 17, 64, 100, 576, 1536]


def to_bf16(x: Array) -> Array:
    """Rounded to nearest, ties to even, as uint16."""
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_equals_float64(width: int, isa: str) -> None:
    x, weight, out = 3 * normal(5, width), normal(width, seed=1), np.empty((5, width), np.float32)
    _native.rms_norm(x, weight, 1e-5, out, isa)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-7)
    rounded = np.empty((5, width), np.uint16)
    _native.rms_norm(x, weight, 1e-5, rounded, isa)
    np.testing.assert_array_equal(rounded, to_bf16(out))


@pytest.mark.parametrize("isa", ISAS)
def test_a_norm_does_not_depend_on_the_other_rows(isa: str) -> None:
    x, weight = normal(7, 576), normal(576, seed=1)
    together, alone = np.empty((7, 576), np.float32), np.empty((1, 576), np.float32)
    _native.rms_norm(x, weight, 1e-5, together, isa)
    for index in range(7):
        _native.rms_norm(x[index : index + 1].copy(), weight, 1e-5, alone, isa)
        np.testing.assert_array_equal(alone[0], together[index])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_gate_equals_float64(width: int, isa: str) -> None:
    gate, up, out = 4 * normal(width), normal(width, seed=1), np.empty(width, np.float32)
    _native.silu_mul(gate, up, out, isa)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=2e-6, atol=1e-30)
    rounded = np.empty(width, np.uint16)
    _native.silu_mul(gate, up, rounded, isa)
    np.testing.assert_array_equal(rounded, to_bf16(out))


@pytest.mark.parametrize("isa", ISAS)
def test_a_gate_gives_an_element_the_same_bits_at_every_place(isa: str) -> None:
    gate, up = 4 * normal(67), normal(67, seed=1)
    whole, single = np.empty(67, np.float32), np.empty(1, np.float32)
    _native.silu_mul(gate, up, whole, isa)
    for index in range(67):
        _native.silu_mul(gate[index : index + 1].copy(), up[index : index + 1].copy(), single, isa)
        assert single[0] == whole[index]


@pytest.mark.parametrize("isa", ISAS)
def test_a_gate_far_from_zero_is_the_input_or_nothing_and_nan_stays(isa: str) -> None:
    gate, out = np.array([-1e4, -100.0, 0.0, 100.0, 1e4, np.nan], np.float32), np.empty(6, np.float32)
    _native.silu_mul(gate, np.ones(6, np.float32), out, isa)
    np.testing.assert_allclose(out[:5], [0, 0, 0, 100, 1e4], atol=1e-30)
    assert np.isnan(out[5])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [2, 8, 16, 64, 80, 96, 128, 256])
def test_a_rotation_turns_the_halves_of_every_head(head_dim: int, isa: str) -> None:
    x, angle = normal(3, head_dim), np.arange(head_dim // 2, dtype=np.float32) * 0.7
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = np.split(x.astype(np.float64), 2, axis=1)
    expected = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
    _native.rotate(x, cos, sin, isa)
    np.testing.assert_allclose(x, expected, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 8), (3, 64), (1, 80)])
def test_only_named_slots_are_written(isa: str, is_bf16: bool, kv_heads: int, head_dim: int) -> None:
    storage = normal(12, 2, 4, kv_heads, head_dim, seed=2)
    storage = to_bf16(storage) if is_bf16 else storage
    kv = to_panels(storage)
    k, v = normal(4, kv_heads * head_dim), normal(4, kv_heads * head_dim, seed=1)
    _native.write_kv(kv, k, v, np.array([5, -1, 10, 47]), isa)
    for token, page, offset in ((0, 1, 1), (2, 2, 2), (3, 11, 3)):
        for plane, values in enumerate((k, v)):
            stored = to_bf16(values[token]) if is_bf16 else values[token]
            storage[page, plane, offset] = stored.reshape(kv_heads, head_dim)
    np.testing.assert_array_equal(kv, to_panels(storage))


def test_a_slot_outside_of_the_storage_is_refused() -> None:
    kv, row = np.zeros((3, 1, 2, 16, 8), np.float32), np.zeros((1, 8), np.float32)
    for slot in (-2, 48):
        with pytest.raises(ValueError, match="slots"):
            _native.write_kv(kv, row, row, np.array([slot]))


def exp2_through_attention(x: Array, isa: str) -> Array:
    """2^x for x <= 0 as a kernel weighs keys: of two keys with scores 0 and x, the values 0 and 1."""
    out = np.empty((len(x), 8), np.float32)
    pages = 2 * len(x)
    rows = np.arange(len(x) + 1, dtype=np.int32)
    plan = _native.plan_attention(
        rows, 2 * rows, np.arange(pages, dtype=np.int32), np.full(len(x), 2, np.int32), 1, 1, 1, 1
    )
    kv = np.zeros((pages, 2, 1, 1, 8), np.float32)
    kv[1::2, 0, 0, 0, 0] = x
    kv[1::2, 1] = 1
    kv = to_panels(kv)
    q = np.zeros((len(x), 8), np.float32)
    q[:, 0] = 1
    _native.attention(_native.ThreadPool(1), plan, q, kv, out, float(np.log(2)), isa)
    share = out[:, 0].astype(np.float64)
    return share / (1 - share)


@pytest.mark.parametrize("isa", ISAS)
def test_the_weight_of_a_key_is_a_power_of_two_to_one_in_a_million(isa: str) -> None:
    x = -np.random.default_rng(0).random(2000, np.float32) * 20
    scaled = np.float32(np.float32(np.log(2)) * np.float32(1.44269504088896341)) * x
    np.testing.assert_allclose(exp2_through_attention(x, isa), np.exp2(scaled.astype(np.float64)), rtol=1e-6)
