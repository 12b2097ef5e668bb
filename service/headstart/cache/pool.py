"""The pool of KV blocks: who uses a block, which blocks are free, and which content they still hold.

It knows no requests and no tokens. Blocks are ids; their state lies in parallel lists, which is smaller and faster than
an object a block. A free block keeps its hash, and with it its use as a cached prefix, until it is handed out again.
Owner: the block manager, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headstart.cache.log import EventLog

NULL_BLOCK = 0
_NOT_QUEUED = -1


class PoolError(RuntimeError):
    """An invariant of the pool is broken: the caller's bookkeeping cannot be trusted any more."""


class BlockPool:
    """`num_blocks` usable blocks, ids 1 to `num_blocks`. Block 0 is the null block: never handed out, zero for ever.

    The free queue is a doubly linked list through `_next` and `_prev`, with the null block as its end marker; its
    head is evicted first. A block is in it if and only if its reference count is 0.
    """

    def __init__(self, num_blocks: int, log: EventLog) -> None:
        if num_blocks < 1:
            raise PoolError(f"a pool needs at least one usable block, not {num_blocks}")
        ids = list(range(num_blocks + 1))
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_idle_cached = 0
        self.ref_counts = [0] * (num_blocks + 1)
        self.hashes: list[bytes | None] = [None] * (num_blocks + 1)
        self._by_hash: dict[bytes, int] = {}
        self._next = [*ids[1:], NULL_BLOCK]
        self._prev = [ids[-1], *ids[:-1]]
        self._log = log

    @property
    def num_cached(self) -> int:
        """Blocks that a lookup can hit, in use or not."""
        return len(self._by_hash)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this content. No side effect."""
        return self._by_hash.get(block_hash)

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the head of the free queue, each with one reference and without a hash."""
        if count > self.num_free:
            raise PoolError(f"{count} blocks taken of {self.num_free} free")
        taken = []
        block = self._next[NULL_BLOCK]
        for _ in range(count):
            taken.append(block)
            if self.hashes[block] is not None:
                self.unregister(block)
            self.ref_counts[block] = 1
            self._prev[block] = _NOT_QUEUED
            block = self._next[block]
        self._next[NULL_BLOCK] = block
        self._prev[block] = NULL_BLOCK
        self.num_free -= count
        return taken

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each; an idle one leaves the free queue from wherever it stands."""
        for block in block_ids:
            if self.ref_counts[block] == 0:
                self._unlink(block)
            self.ref_counts[block] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop a reference to each, last block first, so that a request's tail is evicted before its head.

        A block that nobody uses any more goes to the tail of the free queue when it has a hash, else to the head.
        """
        for block in reversed(block_ids):
            count = self.ref_counts[block]
            if count <= 0 or block == NULL_BLOCK:
                raise PoolError(f"block {block} released with {count} references")
            self.ref_counts[block] = count - 1
            if count == 1:
                self._link(block, before=NULL_BLOCK if self.hashes[block] is not None else self._next[NULL_BLOCK])

    def register(self, block: int, block_hash: bytes, parent: bytes | None) -> bool:
        """Make a block in use findable. False, and nothing done, when another block holds the same content."""
        if block_hash in self._by_hash:
            return False
        if self.ref_counts[block] == 0 or self.hashes[block] is not None:
            raise PoolError(f"block {block} registered while free or under another hash")
        self._by_hash[block_hash] = block
        self.hashes[block] = block_hash
        self._log.stored(block_hash, parent)
        return True

    def unregister(self, block: int) -> None:
        """Make a block's content unfindable; its users keep it."""
        block_hash = self.hashes[block]
        if block_hash is None:
            return
        del self._by_hash[block_hash]
        self.hashes[block] = None
        self.num_idle_cached -= self.ref_counts[block] == 0
        self._log.removed(block_hash)

    def clear(self) -> int:
        """Forget all content and say how much it was. Only while no block is in use."""
        if self.num_free != self.num_blocks:
            raise PoolError(f"cleared with {self.num_blocks - self.num_free} blocks in use")
        count = len(self._by_hash)
        self._by_hash.clear()
        self.hashes = [None] * (self.num_blocks + 1)
        self.num_idle_cached = 0
        self._log.cleared()
        return count

    def free_ids(self) -> list[int]:
        """The free queue from head to tail."""
        ids = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            ids.append(block)
            block = self._next[block]
        return ids

    def cached_hashes(self) -> set[bytes]:
        """The content that a lookup can hit now."""
        return set(self._by_hash)

    def audit(self) -> None:
        """Raise PoolError unless every block is either free or in use and the map and the hashes agree."""
        free = self.free_ids()
        if len(free) != self.num_free or len(set(free)) != len(free):
            raise PoolError(f"the free queue holds {len(free)} blocks, the count says {self.num_free}")
        if any(self.ref_counts[block] != 0 for block in free):
            raise PoolError("a block in use is in the free queue")
        in_use = sum(count > 0 for count in self.ref_counts)
        if in_use + len(free) != self.num_blocks or self.ref_counts[NULL_BLOCK] or self.hashes[NULL_BLOCK]:
            raise PoolError(f"{in_use} in use and {len(free)} free of {self.num_blocks}")
        hashed = {block_hash: block for block, block_hash in enumerate(self.hashes) if block_hash is not None}
        if hashed != self._by_hash:
            raise PoolError("the map and the blocks' hashes disagree")
        if self.num_idle_cached != sum(self.hashes[block] is not None for block in free):
            raise PoolError(f"{self.num_idle_cached} idle blocks are said to be cached")

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        if block == NULL_BLOCK or before == _NOT_QUEUED:
            raise PoolError(f"block {block} is not in the free queue")
        self._next[before] = after
        self._prev[after] = before
        self._prev[block] = _NOT_QUEUED
        self.num_free -= 1
        self.num_idle_cached -= self.hashes[block] is not None

    def _link(self, block: int, *, before: int) -> None:
        previous = self._prev[before]
        self._next[previous] = block
        self._prev[block] = previous
        self._next[block] = before
        self._prev[before] = block
        self.num_free += 1
        self.num_idle_cached += self.hashes[block] is not None
