"""Who holds which block: hash -> pods and pod -> hashes, and how long a chain each pod has of a prompt.

Every pod has one bit, and a hash maps to the bits of its holders: a chain is walked once for all pods. Applying an
event twice changes nothing. Blocks that a placed request is about to compute are kept beside those that are held, so
that siblings follow at once; they count in matches, not in digests. Knows nothing of streams, loads or costs.
Owner and only writer: the operator's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headstart.contract.events import CacheEvent, Digest, Removed, Stored

from headstart_operator.decision.identity import PodKey


class PrefixIndex:
    """Hashes are the 64 bits of `prefix.wire_hash`. Its size is bounded by what the pods' streams store."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._promised: list[tuple[PodKey, Sequence[int]]] = []
        self._pods: dict[PodKey, _Pod] = {}
        self._by_bit: dict[int, _Pod] = {}

    def apply(self, key: PodKey, events: Iterable[CacheEvent]) -> None:
        """Take events of one pod, in order. A store of what is held and a removal of what is not change nothing."""
        self.catch_up()
        pod = self._pods.get(key) or self._add(key)
        holders, held, bit = self._holders, pod.held, pod.bit
        last = bit
        for event in events:
            if isinstance(event, Stored):
                block = event.hash
                if block not in held:
                    held[block] = None
                    pod.xor ^= block
                    # Blocks that one pod alone holds, which are most, share its own int; those of a chain that
                    # several hold share one, so that a match passes over them at once.
                    others = holders.get(block)
                    now = bit if others is None else others | bit
                    holders[block] = last = last if last == now else now
                if pod.pending.pop(block, None) is not None:
                    _clear(self._pending, block, bit)
            elif isinstance(event, Removed):
                block = event.hash
                if block in held:
                    del held[block]
                    pod.xor ^= block
                    _clear(holders, block, bit)
            else:
                self._forget_held(pod)

    def drop(self, key: PodKey) -> None:
        """Forget a pod. Unknown keys are ignored."""
        self.catch_up()
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        self._forget_held(pod)
        for block in pod.pending:
            _clear(self._pending, block, pod.bit)
        del self._by_bit[pod.bit]

    def match(self, hashes: Sequence[int]) -> dict[PodKey, int]:
        """How many leading blocks of a chain each pod holds or is about to; pods without the first are left out."""
        self.catch_up()
        found: dict[PodKey, int] = {}
        holders, pending, by_bit = self._holders, self._pending, self._by_bit
        alive = -1
        for depth, held_by in enumerate(map(holders.get, hashes)):
            if held_by is alive:
                continue
            here = held_by or 0
            if pending:
                here |= pending.get(hashes[depth], 0)
            left = here & alive
            if left == alive:
                continue
            if depth:
                _note(found, by_bit, alive ^ left, depth)
            if not left:
                return found
            alive = here if left == here else left
        if hashes:
            _note(found, by_bit, alive, len(hashes))
        return found

    def reserve(self, key: PodKey, hashes: Sequence[int]) -> None:
        """Note blocks that a pod is about to compute, until they are stored or released. Ignores unknown pods.

        The request is what waits for this, so the work is left to `catch_up`: to whoever asks or changes anything next,
        unless somebody has time for it before.
        """
        self._promised.append((key, hashes))

    def catch_up(self) -> None:
        """Do what `reserve` left to do."""
        while self._promised:
            self._reserve(*self._promised.pop(0))

    def release(self, key: PodKey, hashes: Iterable[int]) -> None:
        """Take one reservation back; of blocks that were stored meanwhile none is left."""
        self.catch_up()
        pod = self._pods.get(key)
        if pod is None:
            return
        for block in hashes:
            count = pod.pending.get(block, 0)
            if count > 1:
                pod.pending[block] = count - 1
            elif count == 1:
                del pod.pending[block]
                _clear(self._pending, block, pod.bit)

    def digest(self, key: PodKey) -> Digest:
        """Of what this pod holds, to compare with what it says itself."""
        pod = self._pods.get(key)
        return Digest(len(pod.held), pod.xor) if pod else Digest(0, 0)

    def held(self, key: PodKey) -> frozenset[int]:
        """What this pod holds."""
        pod = self._pods.get(key)
        return frozenset(pod.held) if pod else frozenset()

    def num_blocks(self) -> int:
        """Different hashes that are held anywhere."""
        return len(self._holders)

    def dump(self) -> Iterator[tuple[int, tuple[PodKey, ...]]]:
        """Every held hash and its holders, as of now."""
        for block, bits in list(self._holders.items()):
            yield block, tuple(self._by_bit[bit].key for bit in _bits(bits) if bit in self._by_bit)

    def _reserve(self, key: PodKey, hashes: Sequence[int]) -> None:
        pod = self._pods.get(key)
        if pod is None:
            return
        counts, pending, bit = pod.pending, self._pending, pod.bit
        new = [block for block in hashes if block not in pod.held]
        # Nobody's yet, mostly: all at once takes half the time.
        if pending.keys().isdisjoint(new):
            counts.update(dict.fromkeys(new, 1))
            pending.update(dict.fromkeys(new, bit))
            return
        for block in new:
            counts[block] = counts.get(block, 0) + 1
            pending[block] = pending.get(block, 0) | bit

    def _add(self, key: PodKey) -> _Pod:
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        pod = self._pods[key] = self._by_bit[bit] = _Pod(key, bit)
        return pod

    def _forget_held(self, pod: _Pod) -> None:
        for block in pod.held:
            _clear(self._holders, block, pod.bit)
        pod.held = {}
        pod.xor = 0


class _Pod:
    """`held` is a dict without values: it keeps 10,000 hashes in less memory than a set does."""

    __slots__ = ("bit", "held", "key", "pending", "xor")

    def __init__(self, key: PodKey, bit: int) -> None:
        self.key = key
        self.bit = bit
        self.held: dict[int, None] = {}
        self.pending: dict[int, int] = {}
        self.xor = 0


def _clear(table: dict[int, int], block: int, bit: int) -> None:
    bits = table[block] & ~bit
    if bits:
        table[block] = bits
    else:
        del table[block]


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low
        bits ^= low


def _note(found: dict[PodKey, int], by_bit: dict[int, _Pod], bits: int, depth: int) -> None:
    while bits:
        bit = bits & -bits
        found[by_bit[bit].key] = depth
        bits ^= bit
