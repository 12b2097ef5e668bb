"""Attention over paged K/V and linear layers in plain torch: exact, slow, and the oracle for every other backend.

On a CPU a token's result is bit-identical whatever else is in the batch, however its prompt was cut into chunks and
wherever its pages lie. That holds by construction, not by luck:

- A matrix product is only ever called with one shape (`TILE_TOKENS` rows, or `TILE_QUERIES` tokens against `TILE_KEYS`
  keys), because a library sums in another order for another shape.
- Tiles of queries and of keys start at multiples of their size, counted in positions of the request. A query thus
  always stands at the same place of its tile and meets the same tiles of keys, and these are summed from first to last.
- `exp` is the only transcendental: torch's other vector functions give an element another last bit when it falls into
  the tail of a vector.

Padding repeats real tokens and real keys, so nothing that was never written is ever read.
Knows nothing of requests, models or layers. Owns no state; the K/V storage belongs to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headstart_kernels.metadata import AttentionMetadata

TILE_TOKENS = 16
"""Rows of one matrix product of a linear layer. A batch is padded to a multiple of it."""

TILE_QUERIES = 8
TILE_KEYS = 64
"""A multiple of TILE_QUERIES, so that all queries of a tile end in the same tile of keys."""

MAX_PAIRS = 128
"""Pairs of a query tile and a key tile that are worked on at once: keeps them in the cache; never changes a bit."""


def tiled_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias`, row-invariant on a CPU.

    x [tokens, in] with tokens a multiple of TILE_TOKENS, weight [out, in], bias [out]; gives [tokens, out].
    """
    if x.device.type != "cpu":
        return torch.nn.functional.linear(x, weight, bias)
    tiles, columns = x.view(-1, TILE_TOKENS, x.shape[1]), weight.t()
    if x.dtype == torch.float32:
        # One call that is split among threads by tile; every product in it has the same shape.
        out = torch.bmm(tiles, columns.expand(len(tiles), *columns.shape)).view(-1, weight.shape[0])
    else:
        # In bfloat16 that call would copy the weights once per tile.
        out = torch.cat([torch.mm(tile, columns) for tile in tiles]) if len(tiles) else x.new_empty((0, len(weight)))
    return out if bias is None else out.add_(bias)


def write_kv(kv_layer: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Put K and V where `slots` says.

    kv_layer [pages, 2, page_size, kv_heads, head_dim], k and v [tokens, kv_heads, head_dim], slots int64 [tokens]
    on the same device; a token of slot -1 is skipped.
    """
    page_size = kv_layer.shape[2]
    kept = (slots >= 0).nonzero().squeeze(1)
    places = slots[kept]
    pages, offsets = places // page_size, places % page_size
    kv_layer[pages, 0, offsets] = k[kept].to(kv_layer.dtype)
    kv_layer[pages, 1, offsets] = v[kept].to(kv_layer.dtype)


@dataclass(frozen=True, slots=True)
class _TileGroup:
    """Query tiles that are worked on together, those with the most key tiles first.

    A pair is a query tile and one of its key tiles. Pairs are laid out key tile after key tile, so that those of the
    j-th key tile are one slice, and belong to the first `counts[j]` query tiles.
    """

    tokens: torch.Tensor
    """int64 [tiles, TILE_QUERIES]: the token at each place; unused places repeat one of the tile's tokens."""
    outputs: torch.Tensor
    """int64 [group tokens]: tokens of the batch that this group computes."""
    places: torch.Tensor
    """int64 [group tokens]: where they stand, counted over [tiles * TILE_QUERIES]."""
    pair_tiles: torch.Tensor
    """int64 [pairs]: the query tile of each pair."""
    key_rows: torch.Tensor
    """int64 [pairs * kv_heads * TILE_KEYS]: rows of the K/V storage seen as [pages * 2 * page_size * kv_heads, dim]."""
    counts: list[int]
    """How many query tiles have a j-th key tile; not increasing."""
    last_pairs: torch.Tensor
    """int64 [tiles]: the pair with the tile's last key tile, the only one that the causal mask cuts."""
    hidden: torch.Tensor
    """bool [tiles, 1, TILE_QUERIES, 1, TILE_KEYS]: keys of the last tile that lie after the query."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers of a step share: which query tile meets which keys. Made by `plan_attention`."""

    groups: list[_TileGroup]
    num_tokens: int
    num_kv_heads: int
    value_offset: int
    """Rows from a key to its value in the K/V storage."""


def plan_attention(
    metadata: AttentionMetadata, *, num_kv_heads: int, device: torch.device | str = "cpu"
) -> AttentionPlan:
    """Cut a step into tiles, once for all its layers. The metadata must be valid (`validate_metadata`)."""
    rows = np.repeat(np.arange(metadata.num_rows), np.diff(metadata.qo_indptr))
    blocks = metadata.positions // TILE_QUERIES
    is_first = np.ones(metadata.num_tokens, np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (blocks[1:] != blocks[:-1])
    first_tokens = is_first.nonzero()[0]
    num_keys = metadata.positions[first_tokens] // TILE_KEYS + 1
    longest_first = np.argsort(-num_keys, kind="stable")
    cuts = np.flatnonzero(np.diff(np.cumsum(num_keys[longest_first]) // MAX_PAIRS)) + 1
    tile_of_token = np.cumsum(is_first) - 1
    groups = [
        _plan_group(metadata, tiles, tile_of_token, num_kv_heads, device)
        for tiles in np.split(longest_first, cuts)
        if tiles.size
    ]
    return AttentionPlan(groups, metadata.num_tokens, num_kv_heads, metadata.page_size * num_kv_heads)


def _plan_group(
    metadata: AttentionMetadata,
    tiles: npt.NDArray[Any],
    tile_of_token: npt.NDArray[Any],
    num_kv_heads: int,
    device: torch.device | str,
) -> _TileGroup:
    """Lay out the query tiles `tiles` (longest first); `tile_of_token` [tokens] numbers the tiles of the batch."""
    order = np.full(int(tile_of_token[-1]) + 1, -1)
    order[tiles] = np.arange(tiles.size)
    outputs = np.flatnonzero(order[tile_of_token] >= 0)
    places = order[tile_of_token[outputs]] * TILE_QUERIES + metadata.positions[outputs] % TILE_QUERIES
    flat_tokens = np.repeat(np.searchsorted(tile_of_token, tiles), TILE_QUERIES)
    flat_tokens[places] = outputs
    tokens = flat_tokens.reshape(-1, TILE_QUERIES)
    positions = metadata.positions[tokens]
    num_keys = positions[:, 0] // TILE_KEYS + 1
    counts = (num_keys[None, :] > np.arange(num_keys[0])[:, None]).sum(axis=1)
    pair_starts = np.cumsum(counts) - counts
    pair_tiles = np.arange(counts.sum()) - np.repeat(pair_starts, counts)
    keys = np.repeat(np.arange(counts.size), counts)[:, None] * TILE_KEYS + np.arange(TILE_KEYS)
    last_keys = (num_keys - 1)[:, None, None] * TILE_KEYS + np.arange(TILE_KEYS)
    hidden = last_keys > positions[:, :, None]
    key_rows = _key_rows(metadata, tokens[:, 0][pair_tiles], keys, num_kv_heads)
    return _TileGroup(
        tokens=torch.as_tensor(tokens, device=device),
        outputs=torch.as_tensor(outputs, device=device),
        places=torch.as_tensor(places, device=device),
        pair_tiles=torch.as_tensor(pair_tiles, device=device),
        key_rows=torch.as_tensor(key_rows, device=device),
        counts=counts.tolist(),
        last_pairs=torch.as_tensor(pair_starts[num_keys - 1] + np.arange(tiles.size), device=device),
        hidden=torch.as_tensor(hidden[:, None, :, None, :], device=device),
    )


def _key_rows(
    metadata: AttentionMetadata, tokens: npt.NDArray[Any], keys: npt.NDArray[Any], num_kv_heads: int
) -> npt.NDArray[np.int64]:
    """Storage rows of key positions `keys` [pairs, TILE_KEYS] in the requests of `tokens` [pairs], head before key.

    Positions beyond the request's end stand for its first key: something written, which the mask hides.
    """
    rows = np.searchsorted(metadata.qo_indptr, tokens, side="right") - 1
    within = np.where(keys < metadata.seq_lens[rows][:, None], keys, 0)
    pages = metadata.kv_indices[metadata.kv_indptr[rows][:, None] + within // metadata.page_size]
    slots = pages.astype(np.int64) * 2 * metadata.page_size + within % metadata.page_size
    heads = np.arange(num_kv_heads)[:, None]
    return np.asarray(slots[:, None, :] * num_kv_heads + heads, np.int64).reshape(-1)


def run_attention(q: torch.Tensor, kv_layer: torch.Tensor, plan: AttentionPlan, scale: float) -> torch.Tensor:
    """Causal attention of every query token over its row's keys; sums in float32.

    q [tokens, heads, head_dim], kv_layer [pages, 2, page_size, kv_heads, head_dim] with this step's K/V in it; gives
    [tokens, heads, head_dim] in q's dtype. `heads` is a multiple of `kv_heads`: neighbours share a K/V head.
    """
    out = torch.empty_like(q)
    storage = kv_layer.view(-1, kv_layer.shape[-1])
    for group in plan.groups:
        tiles = _attend(group, q, storage, plan, scale)
        out[group.outputs] = tiles[group.places].to(q.dtype)
    return out


def _attend(
    group: _TileGroup, q: torch.Tensor, storage: torch.Tensor, plan: AttentionPlan, scale: float
) -> torch.Tensor:
    """One group; gives float32 [tiles * TILE_QUERIES, heads, head_dim]."""
    num_heads, head_dim = q.shape[1:]
    num_tiles, kv_heads, pairs = len(group.tokens), plan.num_kv_heads, len(group.pair_tiles)
    shape = (num_tiles, kv_heads, TILE_QUERIES, num_heads // kv_heads)
    queries = q[group.tokens].float().mul_(scale).view(num_tiles, TILE_QUERIES, kv_heads, -1, head_dim)
    queries = queries.transpose(1, 2)[group.pair_tiles].reshape(pairs * kv_heads, -1, head_dim)
    keys = storage.index_select(0, group.key_rows).float().view(-1, TILE_KEYS, head_dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(pairs, *shape[1:], TILE_KEYS)
    scores[group.last_pairs] = scores[group.last_pairs].masked_fill(group.hidden, -torch.inf)
    highest = scores.amax(-1)
    peak = highest[:num_tiles].clone()
    for start, count in _key_tiles(group):
        torch.maximum(peak[:count], highest[start : start + count], out=peak[:count])
    weights = scores.sub_(peak[group.pair_tiles].unsqueeze(-1)).exp_()
    values = storage.index_select(0, group.key_rows + plan.value_offset).float().view(-1, TILE_KEYS, head_dim)
    parts = torch.bmm(weights.view(pairs * kv_heads, -1, TILE_KEYS), values).view(pairs, *shape[1:], head_dim)
    sums = weights.sum(-1)
    out, total = parts[:num_tiles].clone(), sums[:num_tiles].clone()
    for start, count in _key_tiles(group):
        out[:count] += parts[start : start + count]
        total[:count] += sums[start : start + count]
    out /= total.unsqueeze(-1)
    return out.transpose(1, 2).reshape(num_tiles * TILE_QUERIES, num_heads, head_dim)


def _key_tiles(group: _TileGroup) -> list[tuple[int, int]]:
    """(first pair, number of pairs) of the second and later key tiles, in the order in which they are summed."""
    starts = np.cumsum(group.counts).tolist()
    return list(zip(starts[:-1], group.counts[1:], strict=True))


def paged_attention(q: torch.Tensor, kv_layer: torch.Tensor, metadata: AttentionMetadata, scale: float) -> torch.Tensor:
    """`plan_attention` and `run_attention` for a single layer."""
    plan = plan_attention(metadata, num_kv_heads=kv_layer.shape[3], device=q.device)
    return run_attention(q, kv_layer, plan, scale)
