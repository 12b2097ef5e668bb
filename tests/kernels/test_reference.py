from __future__ import annotations

import pytest
import torch
from headstart_kernels.reference import TILE_TOKENS, tiled_linear, write_kv

SHAPES = [(576, 960), (1536, 576), (64, 300), (128, 96)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
def test_a_linear_layer_gives_a_token_the_same_bits_in_any_batch(num_in: int, num_out: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_out, num_in, generator=generator).to(dtype)
    bias = torch.randn(num_out, generator=generator).to(dtype)
    x = torch.randn(10 * TILE_TOKENS, num_in, generator=generator).to(dtype)
    whole = tiled_linear(x, weight, bias)
    for index in (0, 1, 7, 15, 16, 100, 159):
        for place in (0, 5, TILE_TOKENS - 1):
            tile = torch.full((TILE_TOKENS, num_in), torch.nan, dtype=dtype)
            tile[place] = x[index]
            assert torch.equal(tiled_linear(tile, weight, bias)[place], whole[index])


def test_a_linear_layer_equals_the_product_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(40, 24, generator=generator), torch.randn(40, generator=generator)
    x = torch.randn(2 * TILE_TOKENS, 24, generator=generator)
    expected = x.double() @ weight.double().t() + bias.double()
    torch.testing.assert_close(tiled_linear(x, weight, bias).double(), expected, atol=1e-5, rtol=0)


def test_only_named_slots_are_written() -> None:
    kv_layer = torch.zeros(3, 2, 4, 2, 8)
    k, v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    write_kv(kv_layer, k, v, torch.tensor([5, -1, 10]))
    assert torch.equal(kv_layer[1, 0, 1], k[0])
    assert torch.equal(kv_layer[1, 1, 1], v[0])
    assert torch.equal(kv_layer[2, 0, 2], k[2])
    assert torch.equal(kv_layer[2, 1, 2], v[2])
    kv_layer[1, :, 1] = 0
    kv_layer[2, :, 2] = 0
    assert not kv_layer.any()
