"""The pool: who uses a block, what is free in which order, what a free block still holds."""

import pytest
from headstart.cache.log import EventLog
from headstart.cache.pool import BlockPool, PoolError
from headstart.contract.events import Removed, Stored
from headstart.contract.prefix import wire_hash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


def digest(number: int) -> bytes:
    return number.to_bytes(8, "big") * 4


def pool_of(usable: int) -> BlockPool:
    return BlockPool(usable, EventLog())


def test_a_fresh_pool_hands_out_1_2_3_and_never_the_null_block() -> None:
    pool = pool_of(10)
    assert pool.num_free == 10
    assert pool.take(3) == [1, 2, 3]
    assert pool.take(7) == [4, 5, 6, 7, 8, 9, 10]
    assert pool.num_free == 0
    assert pool.free_ids() == []


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(PoolError, match="at least one"):
        pool_of(0)


def test_taking_more_than_is_free_is_an_error_and_changes_nothing() -> None:
    pool = pool_of(3)
    pool.take(2)
    with pytest.raises(PoolError, match="2 blocks taken of 1 free"):
        pool.take(2)
    assert pool.free_ids() == [3]
    pool.audit()


def test_a_block_that_is_free_cannot_be_released_again() -> None:
    pool = pool_of(3)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(PoolError, match="released with 0"):
        pool.release(blocks)
    with pytest.raises(PoolError, match="released"):
        pool.release([0])


def test_a_block_outside_the_free_queue_cannot_be_taken_out_of_it() -> None:
    pool = pool_of(3)
    pool.take(3)
    with pytest.raises(PoolError, match="not in the free queue"):
        pool._unlink(2)


def test_the_middle_of_the_free_queue_can_be_taken_out_and_the_order_is_kept() -> None:
    pool = pool_of(10)
    assert pool.take(1) == [1]
    pool.touch([5])
    assert pool.free_ids() == [2, 3, 4, 6, 7, 8, 9, 10]
    assert pool.num_free == 8
    pool.register(5, digest(5), None)
    pool.release([5])
    assert pool.free_ids() == [2, 3, 4, 6, 7, 8, 9, 10, 5]
    pool.audit()


def test_a_drained_queue_refills_with_right_links() -> None:
    pool = pool_of(4)
    blocks = pool.take(4)
    assert pool.free_ids() == []
    pool.release(blocks)
    assert pool.free_ids() == [1, 2, 3, 4]
    assert pool.take(4) == [1, 2, 3, 4]
    pool.audit()


def test_a_released_request_is_evicted_from_its_tail_and_blocks_without_a_hash_go_first() -> None:
    pool = pool_of(10)
    blocks = pool.take(6)
    for block in blocks[:5]:
        pool.register(block, digest(block), None)
    pool.take(3)
    pool.release(blocks)
    assert pool.free_ids() == [6, 10, 5, 4, 3, 2, 1]


def test_a_popped_block_loses_its_hash_at_that_moment() -> None:
    log = EventLog()
    pool = BlockPool(1, log)
    pool.register(*pool.take(1), digest(1), None)
    pool.release([1])
    log.seal()
    assert pool.find(digest(1)) == 1
    assert pool.take(1) == [1]
    assert pool.find(digest(1)) is None
    batch = log.seal()
    assert batch is not None
    assert batch.events == (Removed(wire_hash(digest(1))),)


def test_touching_an_idle_block_takes_it_out_of_the_queue_and_a_used_one_only_counts() -> None:
    pool = pool_of(3)
    (block,) = pool.take(1)
    pool.register(block, digest(1), None)
    pool.release([block])
    pool.touch([block])
    assert pool.ref_counts[block] == 1
    assert pool.num_free == 2
    pool.touch([block])
    assert pool.ref_counts[block] == 2
    assert pool.num_free == 2


def test_one_hash_names_one_block() -> None:
    log = EventLog()
    pool = BlockPool(2, log)
    first, second = pool.take(2)
    assert pool.register(first, digest(9), None)
    assert not pool.register(second, digest(9), None)
    assert pool.find(digest(9)) == first
    batch = log.seal()
    assert batch is not None
    assert batch.events == (Stored(wire_hash(digest(9)), 0),)
    pool.audit()


def test_a_free_block_cannot_be_registered() -> None:
    with pytest.raises(PoolError, match="while free"):
        pool_of(2).register(1, digest(1), None)


def test_clearing_is_refused_while_blocks_are_in_use() -> None:
    pool = pool_of(2)
    blocks = pool.take(1)
    pool.register(blocks[0], digest(1), None)
    with pytest.raises(PoolError, match="1 blocks in use"):
        pool.clear()
    pool.release(blocks)
    assert pool.clear() == 1
    assert pool.find(digest(1)) is None
    pool.audit()


class PoolMachine(RuleBasedStateMachine):
    """Random use of the pool against the plainest model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log = EventLog()
        self.pool = BlockPool(12, self.log)
        self.held: list[list[int]] = []
        self.next_hash = 0
        self.view: set[int] = set()

    @rule(count=st.integers(0, 6))
    def take(self, count: int) -> None:
        if count <= self.pool.num_free:
            expected = self.pool.free_ids()[:count]
            blocks = self.pool.take(count)
            assert blocks == expected
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(choice=st.randoms(use_true_random=False), reuse=st.booleans())
    def register(self, choice: object, reuse: bool) -> None:
        blocks = choice.choice(self.held)  # type: ignore[attr-defined]
        for block in blocks:
            if self.pool.hashes[block] is None:
                if not reuse:
                    self.next_hash += 1
                name = digest(self.next_hash + 1)
                assert self.pool.register(block, name, None) == (self.pool.find(name) == block)

    @precondition(lambda self: self.pool.cached_hashes())
    @rule(choice=st.randoms(use_true_random=False))
    def hit(self, choice: object) -> None:
        name = choice.choice(sorted(self.pool.cached_hashes()))  # type: ignore[attr-defined]
        block = self.pool.find(name)
        assert block is not None
        self.pool.touch([block])
        self.held.append([block])

    @precondition(lambda self: self.held)
    @rule(choice=st.randoms(use_true_random=False))
    def release(self, choice: object) -> None:
        blocks = choice.choice(self.held)  # type: ignore[attr-defined]
        self.held.remove(blocks)
        self.pool.release(blocks)

    @precondition(lambda self: self.pool.cached_hashes())
    @rule(choice=st.randoms(use_true_random=False))
    def unregister(self, choice: object) -> None:
        name = choice.choice(sorted(self.pool.cached_hashes()))  # type: ignore[attr-defined]
        self.pool.unregister(self.pool.find(name) or 0)

    @precondition(lambda self: not self.held)
    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @rule()
    def seal(self) -> None:
        from support.chain import replay

        batch = self.log.seal()
        replay(self.view, batch.events if batch else ())
        assert self.view == {wire_hash(name) for name in self.pool.cached_hashes()}

    @invariant()
    def every_block_is_free_or_referenced_as_often_as_it_is_held(self) -> None:
        self.pool.audit()
        counts = [0] * 13
        for blocks in self.held:
            for block in blocks:
                counts[block] += 1
        assert counts == self.pool.ref_counts


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
