"""Thousands of random requests through the real chain: every plan is well formed, every rule holds after every step."""

import random
from collections import Counter

import pytest
from headstart.core.step import StepPlan
from headstart.scheduler.limits import SchedulerLimits
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chain import Chain, spec


def model(name: str, position: int) -> int:
    """A request's token at a position: whatever happens to the request, always the same."""
    return 10_000 + (hash_of(name) + position * 7919) % 5000


def hash_of(name: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 104_729


def chain_of(parent: int, tokens: list[int]) -> list[int]:
    """A hash of each prefix, going on from that of the tokens before."""
    hashes = []
    for token in tokens:
        parent = hash((parent, token))
        hashes.append(parent)
    return hashes


class Runner:
    """What a runner believes: its rows' block tables and how far they are computed. It checks what it is told."""

    def __init__(self, bench: Chain) -> None:
        self.bench = bench
        self.tables: dict[str, list[int]] = {}
        self.known: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.prefixes: dict[str, list[int]] = {}
        """Of each known token of a row, a hash of the text up to it: what its K/V depends on."""
        self.pages: dict[tuple[int, int], int] = {}
        """(block, offset) -> the prefix whose K/V was written there last."""

    def check(self, plan: StepPlan) -> None:
        limits, block_size = self.bench.limits, self.bench.block_size
        for name in plan.finished:
            for columns in (self.tables, self.known, self.computed, self.prefixes):
                columns.pop(name, None)
        for row in plan.started:
            name = row.spec.request_id
            assert name not in self.tables, "started twice"
            self.tables[name] = list(row.block_ids)
            self.known[name] = len(row.token_ids)
            self.computed[name] = row.num_computed
            self.prefixes[name] = chain_of(0, row.token_ids)
        assert plan.total_tokens <= limits.max_num_batched_tokens
        assert len(set(plan.request_ids)) == plan.num_rows <= limits.max_num_seqs
        used: Counter[int] = Counter()
        for row, name in enumerate(plan.request_ids):
            self.tables[name].extend(plan.new_block_ids[row])
            start, count, drafts = plan.starts[row], plan.num_tokens[row], plan.drafts.get(row, [])
            assert count >= 1
            assert self.computed[name] <= start < self.known[name], "a gap, or nothing to compute"
            if start != self.computed[name]:
                assert start % block_size == 0 or start == self.known[name] - 1, "a jump that is no hit"
            assert plan.samples[row] == (start + count >= self.known[name])
            assert len(drafts) == max(0, start + count - self.known[name])
            blocks = self.tables[name]
            assert len(blocks) * block_size >= start + count, "no slot for a scheduled token"
            assert blocks == self.bench.scheduler._requests[name].table.block_ids, "a table changed behind the runner"
            assert 0 not in blocks
            assert len(set(blocks)) == len(blocks)
            if row not in plan.read_only:
                used.update({blocks[position // block_size] for position in range(start, start + count)})
            else:
                assert start == self.known[name] - 1
                assert count == 1
        assert all(count == 1 for count in used.values()), "two rows write into one block"
        self.check_contents(plan)

    def check_contents(self, plan: StepPlan) -> None:
        """All rows write, then all rows read: every position that a row attends to must hold its own prefix."""
        block_size = self.bench.block_size
        reads = []
        for row, name in enumerate(plan.request_ids):
            prefix = self.prefixes[name]
            prefix = prefix + chain_of(prefix[-1], plan.drafts.get(row, []))
            end = plan.starts[row] + plan.num_tokens[row]
            slots = [(self.tables[name][place // block_size], place % block_size) for place in range(end)]
            if row not in plan.read_only:
                self.pages.update(zip(slots[plan.starts[row] :], prefix[plan.starts[row] : end], strict=True))
            reads.append((slots, prefix[:end]))
        for slots, prefix in reads:
            assert [self.pages.get(slot) for slot in slots] == prefix, "a row attends to what is not its own text"

    def note(self, plan: StepPlan, sampled: list[list[int]]) -> None:
        for row, name in enumerate(plan.request_ids):
            if plan.samples[row]:
                self.computed[name] = self.known[name] + len(sampled[row]) - 1
                self.known[name] += len(sampled[row])
                self.prefixes[name] += chain_of(self.prefixes[name][-1], sampled[row])
            else:
                self.computed[name] = plan.starts[row] + plan.num_tokens[row]


def blast(bench: Chain, *, steps: int, max_drafts: int, seed: int, backlog: int, families: int = 6) -> None:
    rng = random.Random(seed)
    runner = Runner(bench)
    live: list[str] = []
    wanted: dict[str, int] = {}
    number = 0
    for _ in range(steps):
        while bench.scheduler.stats.waiting < backlog and rng.random() < 0.9:
            name = f"r{number}"
            number += 1
            family = rng.randrange(families)
            length = rng.randrange(1, min(90, bench.usable * bench.block_size // 3))
            wanted[name] = rng.randrange(1, 30)
            prompt = range(1000 * family, 1000 * family + length)
            bench.add(spec(name, list(prompt), max_tokens=wanted[name], priority=rng.randrange(-3, 4)))
            live.append(name)
        if live and rng.random() < 0.1:
            aborted = live.pop(rng.randrange(len(live)))
            bench.scheduler.abort(aborted)
            wanted.pop(aborted)
        bench.schedule()
        plan = bench.plan
        assert plan is not None
        runner.check(plan)
        if live and rng.random() < 0.02:
            aborted = live.pop(rng.randrange(len(live)))
            bench.scheduler.abort(aborted)
            wanted.pop(aborted)
        sampled = bench.sample(plan)
        drafts = {}
        for row, name in enumerate(plan.request_ids):
            if max_drafts and plan.samples[row]:
                known = runner.known[name] + len(sampled[row])
                guesses = [model(name, known + place) for place in range(rng.randrange(max_drafts + 1))]
                if guesses and rng.random() < 0.5:
                    guesses[rng.randrange(len(guesses))] = 7
                drafts[row] = guesses
        runner.note(plan, sampled)
        updates = bench.commit(sampled=sampled, drafts=drafts)
        for name in updates.finished:
            if name in wanted:
                live.remove(name)
                prompt_tokens = updates.finished[name][1].prompt_tokens
                length = min(wanted.pop(name), bench.usable * bench.block_size - prompt_tokens)
                expected = [model(name, prompt_tokens + place) for place in range(length)]
                assert bench.outputs[name] == expected, "a token was lost, repeated or changed"
        bench.events()
        assert bench.view == bench.truth()
        bench.pool.audit()
        assert bench.scheduler.audit() == 0
    for name in live:
        bench.scheduler.abort(name)
    bench.schedule()
    bench.commit()
    assert bench.pool.num_free == bench.usable
    assert not any(bench.pool.ref_counts)
    assert not bench.scheduler._requests
    bench.scheduler.schedule()


@pytest.mark.parametrize("max_drafts", [0, 1, 5])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(("usable", "max_num_seqs", "steps"), [(40, 8, 500), (100, 64, 200)])
def test_every_rule_holds_under_a_random_load(
    max_drafts: int, policy: str, usable: int, max_num_seqs: int, steps: int
) -> None:
    limits = SchedulerLimits(
        max_num_batched_tokens=96,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=24,
        max_partial_prefills=3,
        policy=policy,
    )
    bench = Chain(usable=usable, block_size=4, limits=limits, next_token=model)
    blast(bench, steps=steps, max_drafts=max_drafts, seed=max_drafts + usable, backlog=12, families=50)
    stats = bench.scheduler.stats
    assert stats.num_preemptions > 5, "the load was too light to show anything"
    assert stats.hit_tokens > 100
    assert stats.rehit_tokens > 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(8, 60),
    st.sampled_from([1, 3, 4, 16]),
    st.integers(4, 120),
    st.integers(1, 9),
    st.integers(0, 30),
    st.sampled_from(["fcfs", "priority"]),
    st.booleans(),
)
def test_every_rule_holds_for_any_limits(
    seed: int,
    usable: int,
    block_size: int,
    budget: int,
    max_num_seqs: int,
    cap: int,
    policy: str,
    caching: bool,
) -> None:
    limits = SchedulerLimits(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=cap,
        max_partial_prefills=1 + seed % 4,
        policy=policy,
        watermark=(seed % 3) * 0.05,
    )
    bench = Chain(usable=usable, block_size=block_size, caching=caching, limits=limits, next_token=model)
    blast(bench, steps=60, max_drafts=seed % 4, seed=seed, backlog=6)
