"""The block manager: what is matched, what a reservation takes, what is registered when, what a release undoes."""

from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.events import Stored
from headstart.contract.prefix import encode_extras, wire_hash
from headstart.core.request import BlockTable

ROOT = bytes(32)
COMMON = list(range(1000, 1048))


class Bench:
    """A manager over a pool of 10 usable blocks of 16, and its log."""

    def __init__(self, usable: int = 10, block_size: int = 16, *, caching: bool = True) -> None:
        self.log = EventLog()
        self.pool = BlockPool(usable, self.log)
        self.manager = BlockManager(self.pool, block_size=block_size, root=ROOT, enable_caching=caching)

    def place(
        self, tokens: list[int], *, reads: bool = True, table: BlockTable | None = None
    ) -> tuple[BlockTable, int]:
        """Match and reserve a whole sequence, and seal: (table, cached tokens)."""
        table = table or BlockTable()
        match = self.manager.match(table, tokens)
        hits = match.block_ids if reads else []
        assert self.manager.reserve(table, tokens, len(tokens), hits) is not None
        self.manager.seal()
        return table, match.num_tokens if reads else 0


def tail(count: int, first: int) -> list[int]:
    return list(range(first, first + count))


def test_the_first_request_takes_blocks_in_order_and_hashes_the_full_ones() -> None:
    bench = Bench()
    table, cached = bench.place(COMMON + tail(7, 1))
    assert cached == 0
    assert table.block_ids == [1, 2, 3, 4]
    assert [bench.pool.hashes[block] is not None for block in table.block_ids] == [True, True, True, False]
    assert [bench.pool.ref_counts[block] for block in table.block_ids] == [1, 1, 1, 1]
    assert bench.pool.num_free == 6


def test_a_second_request_shares_the_common_blocks() -> None:
    bench = Bench()
    bench.place(COMMON + tail(7, 1))
    table, cached = bench.place(COMMON + tail(5, 100))
    assert cached == 48
    assert table.block_ids == [1, 2, 3, 5]
    assert [bench.pool.ref_counts[block] for block in (1, 2, 3)] == [2, 2, 2]
    assert bench.pool.num_free == 5


def test_releases_put_unhashed_blocks_to_the_head_and_hashed_ones_tail_first_to_the_end() -> None:
    bench = Bench()
    first, _ = bench.place(COMMON + tail(7, 1))
    second, _ = bench.place(COMMON + tail(5, 100))
    bench.manager.release(first)
    bench.manager.release(second)
    assert bench.pool.free_ids() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    bench.log.seal()
    table, cached = bench.place(tail(160, 5000))
    assert cached == 0
    assert table.block_ids == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert bench.pool.num_free == 0
    batch = bench.log.seal()
    assert batch is not None
    kinds = [type(event).__name__ for event in batch.events]
    assert kinds == ["Removed"] * 3 + ["Stored"] * 10


def test_releasing_twice_gives_the_blocks_back_once() -> None:
    bench = Bench()
    table, _ = bench.place(tail(40, 0))
    bench.manager.release(table)
    bench.manager.release(table)
    assert bench.pool.num_free == 10
    bench.pool.audit()


def test_a_release_between_two_requests_keeps_the_order_of_the_free_queue() -> None:
    bench = Bench()
    first, _ = bench.place(tail(87, 0))
    second, _ = bench.place(tail(48, 500))
    bench.manager.release(first)
    assert bench.pool.free_ids() == [6, 10, 5, 4, 3, 2, 1]
    bench.manager.release(second)
    assert bench.pool.free_ids() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]


def test_decoding_within_a_block_needs_none_and_hashes_none() -> None:
    bench = Bench()
    tokens = tail(55, 0)
    table, _ = bench.place(tokens)
    tokens += tail(4, 900)
    assert bench.manager.reserve(table, tokens, 59) == []
    assert bench.pool.hashes[table.block_ids[-1]] is None
    tokens += tail(19, 950)
    assert bench.manager.reserve(table, tokens, 78) == [5]
    assert bench.pool.hashes[4] is not None
    assert bench.pool.hashes[5] is None


def test_appending_token_by_token_gives_the_hashes_of_the_whole() -> None:
    one, two = Bench(), Bench()
    tokens = tail(60, 7)
    whole, _ = one.place(tokens)
    table = BlockTable()
    for end in range(1, 61):
        two.manager.reserve(table, tokens[:end], end)
    assert table.hashes == whole.hashes
    assert len(whole.hashes) == 3


def test_a_hit_leaves_one_token_to_compute_and_takes_no_new_block() -> None:
    for length, expected in [(33, 32), (32, 31)]:
        bench = Bench()
        tokens = tail(length, 0)
        first, _ = bench.place(tokens)
        table, cached = bench.place(tokens)
        assert cached == expected
        assert table.block_ids[:2] == first.block_ids[:2]
        assert table.shared_end == 32
        assert bench.pool.num_free == 10 - len(first.block_ids) - (length == 33)


def test_the_first_miss_ends_the_match() -> None:
    bench = Bench()
    table, _ = bench.place(tail(64, 0))
    bench.pool.unregister(table.block_ids[1])
    assert bench.manager.match(BlockTable(), tail(64, 0)).block_ids == table.block_ids[:1]


def test_a_lookup_and_a_failed_reservation_change_nothing() -> None:
    bench = Bench(usable=5)
    first, _ = bench.place(tail(48, 0))
    bench.manager.release(first)
    bench.log.seal()
    other, _ = bench.place(tail(16, 700))
    before = (bench.pool.free_ids(), bench.pool.ref_counts[:], bench.pool.hashes[:])
    table = BlockTable()
    match = bench.manager.match(table, tail(80, 0))
    assert match.num_tokens == 48
    assert bench.manager.need(table, 80, match.block_ids) == 5
    assert bench.manager.reserve(table, tail(80, 0), 80, match.block_ids) is None
    assert before == (bench.pool.free_ids(), bench.pool.ref_counts, bench.pool.hashes)
    assert table.block_ids == []
    bench.manager.release(other)
    assert bench.manager.reserve(table, tail(80, 0), 80, match.block_ids) is not None


def test_hits_that_lie_in_the_free_queue_are_pinned_before_new_blocks_are_taken() -> None:
    bench = Bench(usable=3)
    first, _ = bench.place(tail(32, 0))
    bench.manager.release(first)
    table, cached = bench.place(tail(48, 0))
    assert cached == 32
    assert table.block_ids == [1, 2, 3]


def test_drafts_are_never_registered() -> None:
    bench = Bench()
    table, _ = bench.place(tail(30, 0))
    known = tail(31, 0)
    bench.manager.reserve(table, known, 35)
    assert bench.pool.num_cached == 1
    known += [77]
    bench.manager.reserve(table, known, 32)
    assert bench.pool.num_cached == 2


def test_what_a_table_registered_is_taken_back_when_it_is_released_before_the_seal() -> None:
    bench = Bench()
    table = BlockTable()
    bench.manager.reserve(table, tail(40, 0), 40)
    assert bench.pool.num_cached == 2
    bench.manager.release(table)
    assert bench.pool.num_cached == 0
    assert bench.log.seal() is None


def test_a_table_whose_pending_blocks_were_hit_is_a_lender_until_the_seal() -> None:
    bench = Bench()
    lender, borrower = BlockTable(), BlockTable()
    bench.manager.reserve(lender, tail(40, 0), 40)
    match = bench.manager.match(borrower, tail(48, 0))
    assert not lender.is_lender
    assert bench.manager.settled(match.block_ids) == []
    bench.manager.reserve(borrower, tail(48, 0), 48, match.block_ids)
    assert lender.is_lender
    assert not borrower.is_lender
    bench.manager.seal()
    assert not lender.is_lender
    assert bench.manager.settled(match.block_ids) == match.block_ids


def test_forgetting_unregisters_shared_blocks_too() -> None:
    bench = Bench()
    bench.place(tail(40, 0))
    second, _ = bench.place(tail(40, 0))
    bench.manager.release(second, forget=True)
    assert bench.pool.num_cached == 0
    bench.pool.audit()


def test_equal_content_is_registered_once_and_removed_only_when_lookups_miss_it() -> None:
    bench = Bench(usable=6, block_size=4)
    first, _ = bench.place(tail(8, 0), reads=False)
    second, _ = bench.place(tail(8, 0), reads=False)
    assert second.block_ids != first.block_ids
    batch = bench.log.seal()
    assert batch is not None
    assert len(batch.events) == 2
    originals = first.block_ids
    bench.manager.release(first)
    bench.manager.release(second)
    assert bench.manager.match(BlockTable(), tail(9, 0)).block_ids == originals
    bench.pool.take(4)  # the two blocks without a hash, and the two never used
    assert bench.log.seal() is None
    bench.pool.take(1)
    batch = bench.log.seal()
    assert batch is not None
    assert len(batch.events) == 1
    assert len(bench.manager.match(BlockTable(), tail(9, 0)).block_ids) == 1


def test_stores_come_in_order_with_their_parents_and_a_second_drain_is_empty() -> None:
    for count in (2, 3, 10):
        bench = Bench(usable=count)
        table, _ = bench.place(tail(16 * count, 0))
        batch = bench.log.seal()
        assert batch is not None
        hashes = [wire_hash(digest) for digest in table.hashes]
        assert list(batch.events) == [Stored(h, p) for h, p in zip(hashes, [0, *hashes[:-1]], strict=True)]
        assert bench.log.seal() is None
        bench.manager.release(table)
        bench.place(tail(16 * count, 0), reads=False)
        batch = bench.log.seal()
        assert batch is not None
        kinds = [type(event).__name__ for event in batch.events]
        assert kinds == ["Removed"] * count + ["Stored"] * count


def test_salt_separates_and_equal_salt_shares() -> None:
    bench = Bench()
    cached = []
    for salt in ("a", "a", "b", ""):
        table = BlockTable(encode_extras(cache_salt=salt))
        cached.append(bench.place(tail(48, 0), table=table)[1])
        bench.manager.release(table)
    assert cached == [0, 47, 0, 0]


def test_an_adapter_of_the_same_name_with_other_content_never_hits() -> None:
    bench = Bench()
    cached = []
    for name, content in (("x", "1"), ("x", "2"), ("x", "1")):
        table = BlockTable(encode_extras(lora=name, lora_digest=content))
        cached.append(bench.place(tail(48, 0), table=table)[1])
        bench.manager.release(table)
    assert cached == [0, 0, 47]


def test_with_caching_off_nothing_is_hashed_looked_up_or_published() -> None:
    bench = Bench(usable=5, block_size=4, caching=False)
    first, cached = bench.place(tail(10, 0))
    assert (len(first.block_ids), cached, first.hashes) == (3, 0, [])
    assert bench.manager.reserve(BlockTable(), tail(16, 0), 16) is None
    bench.manager.release(first)
    second, cached = bench.place(tail(16, 0))
    assert (len(second.block_ids), cached) == (4, 0)
    third, _ = bench.place(tail(4, 0))
    assert bench.manager.reserve(BlockTable(), tail(4, 0), 4) is None
    assert bench.log.seal() is None
    assert len(third.block_ids) == 1


def test_the_running_total_of_freed_blocks_counts_a_shared_block_with_its_last_user() -> None:
    bench = Bench()
    first, _ = bench.place(COMMON + tail(7, 1))
    second, _ = bench.place(COMMON + tail(5, 100))
    assert list(bench.manager.freed_by([first, second], [])) == [1, 5]
    assert list(bench.manager.freed_by([first, second], [1, 2])) == [1, 3]
    assert bench.pool.num_free == 5
