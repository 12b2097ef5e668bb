"""Ragged batches for the attention contract, the dense float64 answer, and a call of the native kernels.

Torch only at the edges: a case is numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from headstart_kernels import _native
from headstart_kernels.metadata import AttentionMetadata, build_metadata, validate_metadata
from headstart_kernels.reference import write_kv

PANEL_SLOTS = 16


@dataclass(frozen=True)
class Row:
    """A request in the batch: its tokens before this step, its tokens in this step, and its pages."""

    start: int
    num_tokens: int
    pages: list[int]


@dataclass(frozen=True)
class Heads:
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 64


def make_metadata(rows: list[Row], page_size: int) -> AttentionMetadata:
    tables = np.zeros((len(rows), max((len(row.pages) for row in rows), default=1)), np.int32)
    for line, row in enumerate(rows):
        tables[line, : len(row.pages)] = row.pages
    return build_metadata(
        starts=[row.start for row in rows],
        num_tokens=[row.num_tokens for row in rows],
        block_tables=tables,
        table_rows=range(len(rows)),
        read_only=[False] * len(rows),
        page_size=page_size,
    )


def lay_out(lengths: list[tuple[int, int]], page_size: int, num_pages: int, rng: np.random.Generator) -> list[Row]:
    """Rows of (start, num_tokens) on random distinct pages out of [1, num_pages)."""
    pages = (rng.permutation(num_pages - 1) + 1).tolist()
    rows = []
    for start, num_tokens in lengths:
        needed = -(-(start + num_tokens) // page_size)
        rows.append(Row(start, num_tokens, [pages.pop() for _ in range(needed)]))
    return rows


def random_sequence(length: int, heads: Heads, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], ...]:
    """Q, K, V of one request in float32, [length, heads, head_dim] each."""
    shape = (length, heads.num_kv_heads * heads.group, heads.head_dim)
    kv_shape = (length, heads.num_kv_heads, heads.head_dim)
    q, k, v = (rng.standard_normal(s, np.float32) for s in (shape, kv_shape, kv_shape))
    return q, k, v


def dense_attention(q: Any, k: Any, v: Any, scale: float) -> np.ndarray[Any, Any]:
    """The last len(q) tokens of a sequence, causal, one head and one query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    first = len(k) - len(q)
    for token in range(len(q)):
        seen = first + token + 1
        for head in range(q.shape[1]):
            keys, values = k[:seen, head // group], v[:seen, head // group]
            scores = keys @ q[token, head] * scale
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values / weights.sum()
    return out


def fill_storage(
    rows: list[Row], sequences: list[Any], page_size: int, num_pages: int, poison: float = np.nan
) -> torch.Tensor:
    """Storage that holds each row's earlier tokens; all else is poison. This step's tokens are not in it yet."""
    _, k, _ = sequences[0]
    storage = np.full((num_pages, 2, page_size, *k.shape[1:]), poison, np.float32)
    storage[0] = 0
    for row, (_, keys, values) in zip(rows, sequences, strict=True):
        for position in range(row.start):
            page, offset = row.pages[position // page_size], position % page_size
            storage[page, 0, offset] = keys[position]
            storage[page, 1, offset] = values[position]
    return torch.from_numpy(storage)


def step_inputs(rows: list[Row], sequences: list[Any]) -> tuple[torch.Tensor, ...]:
    """Q, K, V of this step's tokens, flattened."""
    spans = [slice(row.start, row.start + row.num_tokens) for row in rows]
    parts = [[sequence[i][span] for sequence, span in zip(sequences, spans, strict=True)] for i in range(3)]
    return tuple(torch.from_numpy(np.concatenate(part)) for part in parts)


@dataclass(frozen=True)
class NativeAttention:
    """The native kernels of one instruction set, called as a backend of the contract."""

    isa: str
    num_threads: int = 2
    shares_prefixes: bool = True

    def plan(self, metadata: AttentionMetadata, num_heads: int, num_kv_heads: int) -> Any:
        return _native.plan_attention(
            metadata.qo_indptr,
            metadata.kv_indptr,
            metadata.kv_indices,
            metadata.seq_lens,
            metadata.page_size,
            num_heads,
            num_kv_heads,
            self.num_threads,
            self.shares_prefixes,
        )

    def __call__(self, rows: list[Row], sequences: list[Any], storage: torch.Tensor) -> torch.Tensor:
        """Write this step's K/V, into `storage` too, then attend."""
        metadata = make_metadata(rows, storage.shape[2])
        validate_metadata(metadata, len(storage))
        inputs = step_inputs(rows, sequences)
        q, k, v = (x.numpy().reshape(len(x), -1) for x in inputs)
        kv, out = to_panels(as_numpy(storage)), np.empty(q.shape, np.float32)
        _native.write_kv(kv, k, v, metadata.slots, self.isa)
        write_kv(storage, *inputs[1:], torch.from_numpy(metadata.slots))
        if storage.dtype == torch.bfloat16:
            out = np.empty(q.shape, np.uint16)
        plan = self.plan(metadata, q.shape[1] // storage.shape[4], storage.shape[3])
        pool = _native.ThreadPool(self.num_threads)
        _native.attention(pool, plan, q, kv, out, storage.shape[4] ** -0.5, self.isa)
        result = torch.from_numpy(out.view(np.int16) if out.dtype == np.uint16 else out)
        return result.view(storage.dtype).view(len(q), -1, storage.shape[4])


def as_numpy(storage: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same memory; bfloat16 as uint16."""
    return storage.view(torch.int16).numpy().view(np.uint16) if storage.dtype == torch.bfloat16 else storage.numpy()


def to_panels(storage: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """K/V [pages, 2, page_size, kv_heads, head_dim], float32 or bfloat16 as uint16, as KvLayer of csrc/attention.h.

    [panels, kv_heads, 2, 16, head_dim], of which the last two axes are only sizes. Slots that fill the last panel up
    are copies of the last one.
    """
    num_heads, head_dim = storage.shape[3:]
    slots = storage.swapaxes(1, 2).reshape(-1, 2, num_heads, head_dim)
    slots = np.pad(slots, ((0, -len(slots) % PANEL_SLOTS), (0, 0), (0, 0), (0, 0)), mode="edge")
    numbers = 4 // storage.itemsize  # of a word
    panels = len(slots) // PANEL_SLOTS
    keys = slots[:, 0].reshape(panels, PANEL_SLOTS, num_heads, head_dim // numbers, numbers)
    values = slots[:, 1].reshape(panels, PANEL_SLOTS // numbers, numbers, num_heads, head_dim)
    size = (panels, num_heads, PANEL_SLOTS, head_dim)
    return np.stack([keys.transpose(0, 2, 3, 1, 4).reshape(size), values.transpose(0, 3, 1, 4, 2).reshape(size)], 2)
