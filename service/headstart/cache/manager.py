"""Turns "this request advances to position N" into blocks: match, reserve, seal, release.

It knows tokens and tables, not budgets or queues. A reservation takes all that it needs or changes nothing.
Blocks are registered when they are scheduled, before the forward pass has filled them: sound because each
layer writes all K/V of the batch before its attention reads. Until `seal` they are pending and can be taken back.
Owner: the scheduler, on the engine thread; owns the pool and every `BlockTable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from headstart.cache.pool import BlockPool
from headstart.contract.prefix import block_hashes, hit_length
from headstart.core.request import BlockTable, PrefixMatch


class BlockManager:
    """Blocks of `block_size` tokens from `pool`. `root` is the parent hash of every first block."""

    def __init__(self, pool: BlockPool, *, block_size: int, root: bytes, enable_caching: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.is_caching = enable_caching
        self._root = root
        self._pending: dict[int, BlockTable] = {}
        self._lenders: list[BlockTable] = []

    def match(self, table: BlockTable, tokens: Sequence[int]) -> PrefixMatch:
        """The cached blocks that continue `table`, up to the first miss. No side effect on the pool."""
        hits: list[int] = []
        hashes = self.hash_all(table, tokens)
        for index in range(len(table.block_ids), len(hashes)):
            block = self.pool.find(hashes[index])
            if block is None:
                break
            hits.append(block)
        return PrefixMatch(hits, hit_length(len(table.block_ids) + len(hits), len(tokens), self.block_size))

    def hash_all(self, table: BlockTable, tokens: Sequence[int]) -> list[bytes]:
        """The chain hashes of the full blocks of `tokens`, kept in `table`; none without a cache."""
        if self.is_caching:
            self._hash_up_to(table, tokens, len(tokens) // self.block_size)
        return table.hashes

    def need(self, table: BlockTable, end: int, hits: Sequence[int] = ()) -> int:
        """Free blocks that a reservation up to `end` would use up: new ones, and hits that lie in the free queue."""
        ref_counts = self.pool.ref_counts
        new = -(-end // self.block_size) - len(table.block_ids) - len(hits)
        return max(0, new) + sum(ref_counts[block] == 0 for block in hits)

    def reserve(self, table: BlockTable, tokens: Sequence[int], end: int, hits: Sequence[int] = ()) -> list[int] | None:
        """Give `table` room for positions up to `end` and offer its full blocks of known tokens to the cache.

        `tokens` are the known ones; positions beyond them hold drafts and are never registered. Returns the ids
        appended (hits first), or None with nothing changed when the pool is too small.
        """
        if self.need(table, end, hits) > self.pool.num_free:
            return None
        # Hits first, so that no hit can be evicted to serve its own request.
        if hits:
            self.pool.touch(hits)
            self._note_lenders(hits)
            table.block_ids.extend(hits)
            table.num_registered = len(table.block_ids)
            table.shared_end = table.num_registered * self.block_size
        fresh = self.pool.take(max(0, -(-end // self.block_size) - len(table.block_ids)))
        table.block_ids.extend(fresh)
        self._register(table, tokens, min(end, len(tokens)) // self.block_size)
        return [*hits, *fresh]

    def seal(self) -> None:
        """The step's forward pass is done: what it registered is final."""
        self._pending.clear()
        for table in self._lenders:
            table.is_lender = False
        self._lenders.clear()

    def release(self, table: BlockTable, *, forget: bool = False) -> None:
        """Give all blocks back, tail first. Idempotent.

        What the table registered since the last seal is unregistered: it was not computed. With `forget` all of its
        blocks are, shared ones too: their content is suspect.
        """
        for block in table.block_ids if forget else self.pending_blocks(table):
            self._pending.pop(block, None)
            self.pool.unregister(block)
        self.pool.release(table.block_ids)
        table.block_ids = []
        table.num_registered = table.shared_end = table.edge = 0

    def pending_blocks(self, table: BlockTable) -> list[int]:
        """Blocks that this table registered in the step that is not sealed yet."""
        if not self._pending:
            return []
        return [block for block in table.block_ids if self._pending.get(block) is table]

    def settled(self, hits: Sequence[int]) -> list[int]:
        """The leading hits that no withdrawn row could take back."""
        return list(takewhile(lambda block: block not in self._pending, hits))

    def freed_by(self, tables: Sequence[BlockTable], keep: Sequence[int]) -> Iterator[int]:
        """How many blocks would be free if these tables were released one after the other: a running total.

        Blocks in `keep` do not count. Nothing is changed.
        """
        kept, released = set(keep), dict[int, int]()
        total = 0
        for table in tables:
            for block in table.block_ids:
                released[block] = released.get(block, 0) + 1
                total += released[block] == self.pool.ref_counts[block] and block not in kept
            yield total

    def _note_lenders(self, hits: Sequence[int]) -> None:
        for block in hits:
            lender = self._pending.get(block)
            if lender is not None and not lender.is_lender:
                lender.is_lender = True
                self._lenders.append(lender)

    def _register(self, table: BlockTable, tokens: Sequence[int], num_full: int) -> None:
        table.edge = len(table.block_ids) * self.block_size + 1
        if not self.is_caching:
            return
        self._hash_up_to(table, tokens, num_full)
        for index in range(table.num_registered, num_full):
            block = table.block_ids[index]
            parent = table.hashes[index - 1] if index else None
            if self.pool.register(block, table.hashes[index], parent):
                self._pending[block] = table
        table.num_registered = max(table.num_registered, num_full)
        table.edge = min(table.edge, (table.num_registered + 1) * self.block_size)

    def _hash_up_to(self, table: BlockTable, tokens: Sequence[int], num_full: int) -> None:
        done = len(table.hashes)
        if done >= num_full:
            return
        parent = table.hashes[-1] if done else self._root
        fresh = tokens[done * self.block_size : num_full * self.block_size]
        table.hashes.extend(block_hashes(parent, fresh, self.block_size, table.extras))
