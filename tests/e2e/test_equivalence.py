"""The cache is invisible: whatever the chain does to a request, the model gives it the same tokens and logprobs.

Scheduler, block manager, pool, runner and the real forward pass, without a server. The oracle is the naive loop: one
request, alone, a pool that is large enough, nothing cached, every prompt in one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.contract.request import GenerateSpec, SamplingParams
from headstart.core.step import TokenLogprobs
from headstart.model.source import resolve_source
from headstart.model.weights import open_checkpoint
from headstart.runner.model_runner import Forward, ModelRunner
from headstart.runner.native_runner import NativeForward
from headstart.runner.torch_runner import TorchForward
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
POOL = 64
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=1234)
PENALISED = SamplingParams(temperature=0.7, seed=5, repetition_penalty=1.3, frequency_penalty=0.4)


@pytest.fixture(scope="module", params=["reference float32", "native float32", "native bfloat16", "native quantized"])
def forward(request: pytest.FixtureRequest) -> Forward:
    backend, dtype = request.param.split()
    make = {"reference": TorchForward, "native": NativeForward}[backend]
    checkpoint = open_checkpoint(resolve_source("smollm2-135m-instruct"))
    return make(checkpoint, num_blocks=POOL, block_size=BLOCK_SIZE, dtype=dtype)


@dataclass
class Result:
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    num_preemptions: int = 0
    cached_tokens: int = 0


class Chain:
    """A fresh scheduler and runner over the one model. Its pages keep whatever earlier chains left in them."""

    def __init__(self, forward: Forward, *, usable: int = POOL, num_drafts: int = 0, **limits: object) -> None:
        self.log = EventLog()
        self.pool = BlockPool(usable, self.log)
        manager = BlockManager(self.pool, block_size=BLOCK_SIZE, root=bytes(32))
        defaults = SchedulerLimits(max_len=1024, watermark=0.0)
        self.scheduler = Scheduler(manager, replace(defaults, **limits))  # type: ignore[arg-type]
        self.runner = ModelRunner(forward, block_size=BLOCK_SIZE, eos_token_ids=frozenset(), num_drafts=num_drafts)
        self.results: dict[str, Result] = {}
        self.num_steps = 0

    def run(self, *specs: GenerateSpec) -> dict[str, Result]:
        for each in specs:
            self.scheduler.add(each)
            self.results[each.request_id] = Result([], [])
        while self.scheduler.stats.running or self.scheduler.stats.waiting:
            plan = self.scheduler.schedule()
            updates = self.scheduler.commit(plan, self.runner.submit(plan).result())
            self.num_steps += 1
            for name, tokens in zip(updates.request_ids, updates.new_tokens, strict=True):
                self.results[name].tokens += tokens
                self.results[name].logprobs += updates.logprobs.get(name, [])[: len(tokens)]
            for name, (_, stats) in updates.finished.items():
                self.results[name].num_preemptions = stats.num_preemptions
                self.results[name].cached_tokens = stats.cached_tokens
        return self.results


def prompt(length: int, *, salt: int = 0) -> tuple[int, ...]:
    return tuple(1000 + (salt * 7919 + place * 104_729) % 40_000 for place in range(length))


def request(name: str, tokens: tuple[int, ...], sampling: SamplingParams = GREEDY, **fields: object) -> GenerateSpec:
    fields.setdefault("max_tokens", 8)
    return GenerateSpec(request_id=name, prompt_token_ids=tokens, sampling=sampling, logprobs=2, **fields)  # type: ignore[arg-type]


TARGET = prompt(100)


@pytest.fixture(scope="module")
def expected(forward: Forward) -> dict[str, Result]:
    """The naive loop, for each kind of sampling."""
    kinds = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED}
    return {kind: Chain(forward).run(request(kind, TARGET, sampling))[kind] for kind, sampling in kinds.items()}


KINDS = pytest.mark.parametrize(
    ("kind", "sampling"), [("greedy", GREEDY), ("seeded", SEEDED), ("penalised", PENALISED)]
)


def assert_same(result: Result, expected: Result) -> None:
    assert result.tokens == expected.tokens
    assert result.logprobs == expected.logprobs


@KINDS
@pytest.mark.parametrize("budget", [16, 64, 2048])
def test_chunking_changes_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams, budget: int
) -> None:
    chain = Chain(forward, max_num_batched_tokens=budget)
    assert_same(chain.run(request("a", TARGET, sampling))["a"], expected[kind])
    assert chain.num_steps == -(-100 // budget) + 7


@KINDS
def test_a_prefix_hit_changes_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams
) -> None:
    chain = Chain(forward)
    chain.run(request("primer", TARGET, max_tokens=1))
    warm = chain.run(request("warm", TARGET, sampling))["warm"]
    assert warm.cached_tokens == 96
    assert_same(warm, expected[kind])


def test_a_hit_on_every_block_changes_nothing(forward: Forward) -> None:
    tokens = prompt(96, salt=3)
    cold = Chain(forward).run(request("cold", tokens))["cold"]
    chain = Chain(forward)
    chain.run(request("primer", tokens, max_tokens=1))
    warm = chain.run(request("warm", tokens))["warm"]
    assert warm.cached_tokens == 95
    assert_same(warm, cold)


@KINDS
def test_company_changes_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams
) -> None:
    chain = Chain(forward, max_num_batched_tokens=80, long_prefill_token_threshold=32)
    others = [
        request("shares", (*TARGET[:64], *prompt(30, salt=1)), SEEDED, max_tokens=9),
        request("alien", prompt(51, salt=2), PENALISED, max_tokens=15),
        request("one token", prompt(1, salt=4), max_tokens=7),
    ]
    assert_same(chain.run(others[0], others[1], request("a", TARGET, sampling), others[2])["a"], expected[kind])


def test_two_of_the_same_in_one_step_change_nothing(forward: Forward, expected: dict[str, Result]) -> None:
    results = Chain(forward).run(request("a", TARGET), request("b", TARGET))
    assert results["b"].cached_tokens == 96
    assert_same(results["a"], expected["greedy"])
    assert_same(results["b"], expected["greedy"])


@KINDS
def test_preemption_changes_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams
) -> None:
    chain = Chain(forward, usable=14)
    results = chain.run(request("first", prompt(108, salt=9), max_tokens=16), request("a", TARGET, sampling))
    assert results["a"].num_preemptions >= 1
    assert_same(results["a"], expected[kind])


@KINDS
def test_resumption_from_delivered_tokens_changes_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams
) -> None:
    delivered = tuple(expected[kind].tokens[:5])
    rest = Chain(forward).run(request("a", TARGET, sampling, resume_token_ids=delivered))["a"]
    assert_same(rest, Result(expected[kind].tokens[5:], expected[kind].logprobs[5:]))


@KINDS
def test_drafts_change_nothing(
    forward: Forward, expected: dict[str, Result], kind: str, sampling: SamplingParams
) -> None:
    chain = Chain(forward, num_drafts=4)
    assert_same(chain.run(request("a", TARGET, sampling))["a"], expected[kind])


def test_accepted_drafts_save_steps_and_change_nothing(forward: Forward) -> None:
    plain = Chain(forward)
    drafted = Chain(forward, num_drafts=4)
    spec = request("a", TARGET, max_tokens=24)  # it falls into a loop, as greedy decoding does
    assert_same(drafted.run(spec)["a"], plain.run(spec)["a"])
    assert drafted.num_steps < plain.num_steps
