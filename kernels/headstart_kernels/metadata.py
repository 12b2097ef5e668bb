"""The page table of one step, as compressed sparse rows: what every attention backend reads, in numpy.

The layout is FlashInfer's: row `i` owns the query tokens `qo_indptr[i] : qo_indptr[i + 1]` and the pages
`kv_indices[kv_indptr[i] : kv_indptr[i + 1]]`. Query tokens are the last ones of their row (the causal mask is
aligned to the bottom right): first chunks, later chunks, prefix hits, decodes and draft checks are all one call.

Knows nothing of requests or of torch. The arrays belong to one step; nobody changes them once they are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from headstart_kernels import _native
except ImportError:  # a build without compiled kernels
    _native = None  # type: ignore[assignment]

IntArray = npt.NDArray[np.int32]
SlotArray = npt.NDArray[np.int64]

NO_SLOT = -1
"""A token whose K/V is not written: the page that holds it is shared and already full."""

NULL_PAGE = 0
"""A page that is zero for ever. Only padding rows (one token long, nothing written) may name it."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's rows. `L` of a row counts its tokens in the cache, those of this step among them."""

    qo_indptr: IntArray
    """[rows + 1]: where each row's query tokens start in the flattened batch."""
    kv_indptr: IntArray
    """[rows + 1]: where each row's pages start in `kv_indices`."""
    kv_indices: IntArray
    """[kv_indptr[-1]]: page ids, row after row, in the order of positions."""
    kv_last_page_len: IntArray
    """[rows]: tokens in the row's last page: page_size for an exact multiple, 1 for a row without pages."""
    seq_lens: IntArray
    """[rows]: L."""
    positions: IntArray
    """[tokens]: position of each query token in its request."""
    slots: SlotArray
    """[tokens]: page * page_size + offset where the token's K/V goes, or -1: it is not written."""
    page_size: int

    @property
    def num_rows(self) -> int:
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)


def build_metadata(
    *,
    starts: Sequence[int],
    num_tokens: Sequence[int],
    block_tables: IntArray,
    table_rows: Sequence[int],
    read_only: Sequence[bool],
    page_size: int,
) -> AttentionMetadata:
    """Lay out one step. Row `i` computes positions `starts[i] .. starts[i] + num_tokens[i] - 1`.

    `block_tables` is int32 [any, width]: line `table_rows[i]` holds the pages of row `i` in order; what lies
    beyond the pages that the row needs is not read. `read_only[i]` (bool) gives all tokens of the row slot -1.
    Raises ValueError when a row is longer than its line.
    """
    build = _build_in_numpy if _native is None else _native.build_metadata
    return AttentionMetadata(*build(starts, num_tokens, block_tables, table_rows, read_only, page_size), page_size)


def _build_in_numpy(
    starts: Sequence[int],
    num_tokens: Sequence[int],
    block_tables: IntArray,
    table_rows: Sequence[int],
    read_only: Sequence[bool],
    page_size: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, SlotArray]:
    """The arrays in the order of the fields, for a build without compiled kernels: a fixed number of numpy calls."""
    lines = np.asarray(table_rows, np.int32)
    first = np.asarray(starts, np.int32)
    counts = np.asarray(num_tokens, np.int32)
    seq_lens = first + counts
    num_pages = -(-seq_lens // page_size)
    width = block_tables.shape[1]
    if np.any(num_pages > width):
        raise ValueError(f"block_tables: {width} pages a line, a row needs {num_pages.max()}")
    qo_indptr, token_rows, token_offsets = _spread(counts)
    kv_indptr, page_rows, page_offsets = _spread(num_pages)
    positions = first[token_rows] + token_offsets
    pages = block_tables[lines[token_rows], positions // page_size].astype(np.int64)
    slots = pages * page_size + positions % page_size
    slots[np.asarray(read_only, np.bool_)[token_rows]] = NO_SLOT
    kv_indices = block_tables[lines[page_rows], page_offsets]
    last_page_len = np.where(num_pages > 0, seq_lens - (num_pages - 1) * page_size, 1)
    return qo_indptr, kv_indptr, kv_indices, last_page_len, seq_lens, positions, slots


def _spread(counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Of `counts` items a row: the rows' starts [rows + 1], each item's row and place in it [sum]."""
    indptr = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    offsets = np.arange(indptr[-1], dtype=np.int32) - indptr[:-1][rows]
    return indptr, rows, offsets


def validate_metadata(metadata: AttentionMetadata, num_pages: int) -> None:
    """Check what a kernel would read blindly. `num_pages` counts the null page.

    Raises ValueError whose text starts with the name of the argument that is wrong. An empty batch is valid.
    """
    _check_arrays(metadata)
    _check_rows(metadata)
    _check_pages(metadata, num_pages)
    _check_tokens(metadata)


def _require(holds: Any, argument: str, reason: str) -> None:
    if not bool(np.all(holds)):
        raise ValueError(f"{argument}: {reason}")


def _check_arrays(metadata: AttentionMetadata) -> None:
    """Types, ranks and lengths: everything that makes the later checks safe to compute."""
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "seq_lens", "positions"):
        array = getattr(metadata, name)
        _require(array.dtype == np.int32, name, f"must be int32, is {array.dtype}")
        _require(array.ndim == 1, name, f"must have one dimension, has {array.ndim}")
    _require(metadata.slots.dtype == np.int64, "slots", f"must be int64, is {metadata.slots.dtype}")
    _require(metadata.page_size >= 1, "page_size", f"must be at least 1, is {metadata.page_size}")
    rows = metadata.num_rows
    for name, total in (("qo_indptr", metadata.num_tokens), ("kv_indptr", len(metadata.kv_indices))):
        indptr = getattr(metadata, name)
        _require(len(indptr) == rows + 1, name, f"must have {rows + 1} entries, has {len(indptr)}")
        _require(indptr[0] == 0, name, "must start at 0")
        _require(np.diff(indptr) >= 0, name, "must not decrease")
        _require(indptr[-1] == total, name, f"must end at {total}, ends at {indptr[-1]}")
    _require(len(metadata.kv_last_page_len) == rows, "kv_last_page_len", f"must have {rows} entries")
    _require(metadata.slots.shape == metadata.positions.shape, "slots", "must have one entry a token")


def _check_rows(metadata: AttentionMetadata) -> None:
    seq_lens, page_size, last = metadata.seq_lens, metadata.page_size, metadata.kv_last_page_len
    queries, pages = np.diff(metadata.qo_indptr), np.diff(metadata.kv_indptr)
    _require(seq_lens >= 0, "seq_lens", "must not be negative")
    _require(queries <= seq_lens, "qo_indptr", "a row has more query tokens than tokens")
    _require(pages == -(-seq_lens // page_size), "kv_indptr", "must give a row ceil(seq_len / page_size) pages")
    _require((last >= 1) & (last <= page_size), "kv_last_page_len", f"must lie in [1, {page_size}]")
    expected = np.where(seq_lens > 0, (seq_lens - 1) % page_size + 1, 1)
    _require(last == expected, "kv_last_page_len", "does not agree with seq_lens")


def _check_pages(metadata: AttentionMetadata, num_pages: int) -> None:
    indices = metadata.kv_indices
    _require((indices >= 0) & (indices < num_pages), "kv_indices", f"page ids must lie in [1, {num_pages})")
    row_of_page = np.repeat(np.arange(metadata.num_rows), np.diff(metadata.kv_indptr))
    is_padding = metadata.seq_lens[row_of_page] == 1
    _require((indices != NULL_PAGE) | is_padding, "kv_indices", "page 0 is for padding rows only")


def _check_tokens(metadata: AttentionMetadata) -> None:
    """Positions are the last ones of each row; a slot is -1 or where the page table puts the token."""
    rows = np.repeat(np.arange(metadata.num_rows), np.diff(metadata.qo_indptr))
    offsets = np.arange(metadata.num_tokens) - metadata.qo_indptr[1:][rows]
    _require(
        metadata.positions == metadata.seq_lens[rows] + offsets,
        "positions",
        "must be the row's last ones",
    )
    pages = metadata.kv_indices[metadata.kv_indptr[:-1][rows] + metadata.positions // metadata.page_size]
    expected = pages.astype(np.int64) * metadata.page_size + metadata.positions % metadata.page_size
    is_written = metadata.slots != NO_SLOT
    _require(~is_written | (metadata.slots == expected), "slots", "must be -1 or the token's place")
    _require(~is_written | (pages != NULL_PAGE), "slots", "the null page is never written")
