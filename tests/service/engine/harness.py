"""A whole engine in a test: real scheduler, pool, loop and thread over a simulated runner that can be held."""

import asyncio
import threading
import time
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import xor
from types import SimpleNamespace
from typing import NamedTuple

from headstart.cache.pool import BlockPool
from headstart.contract.prefix import wire_hash
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk
from headstart.engine.decoder import Decoder
from headstart.engine.handle import EngineHandle
from headstart.engine.loop import EngineLoop
from headstart.runner.simulated_runner import SimulatedRunner
from headstart.scheduler.scheduler import Scheduler

BLOCK = 4
FIRST_LETTER, LAST_LETTER = ord("a"), ord("z")


class HeldRunner:
    """A simulated runner whose steps can be held, fail whole, or fail for one request. It notes the plans."""

    def __init__(self):
        self.plans = []
        self.failures_left = 0
        self.faulty_ids = set()
        self.is_held = False
        self.num_reached = 0
        self._permits = None
        self._moved = threading.Condition()
        self._inner = SimulatedRunner(
            vocab_size=LAST_LETTER + 1,
            first_token_id=FIRST_LETTER,
            block_size=BLOCK,
            step_seconds=0.0,
            token_seconds=0.0,
            sleep=time.sleep,
        )

    def hold(self):
        with self._moved:
            self._permits = 0

    def let(self, steps=1):
        with self._moved:
            self._permits += steps
            self._moved.notify_all()

    def free(self):
        with self._moved:
            self._permits = None
            self._moved.notify_all()

    def submit(self, plan):
        self.plans.append(plan)
        if plan.num_rows:
            self._pass()
        flight = self._inner.submit(plan)
        if plan.num_rows and self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("the forward pass broke")
        faults = {row: "non-finite logits" for row, name in enumerate(plan.request_ids) if name in self.faulty_ids}
        if faults:
            output = flight.result()
            sampled = [[] if row in faults else tokens for row, tokens in enumerate(output.sampled)]
            return SimpleNamespace(result=lambda: replace(output, sampled=sampled, faults=faults))
        return flight

    def _pass(self):
        with self._moved:
            self.is_held = True
            self.num_reached += 1
            assert self._moved.wait_for(lambda: self._permits is None or self._permits > 0, timeout=60)
            self.is_held = False
            if self._permits is not None:
                self._permits -= 1


class Clock:
    """Monotonic seconds that stand still until they are moved."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@dataclass
class Read:
    """What one stream said."""

    chunks: list[Chunk] = field(default_factory=list)
    error: Exception | None = None

    @property
    def token_ids(self):
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self):
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def last(self):
        return self.chunks[-1]

    @property
    def reason(self):
        return self.last.finish.reason.value


async def read(stream):
    result = Read()
    try:
        async for chunk in stream:
            result.chunks.append(chunk)
    except Exception as error:
        result.error = error
    return result


async def until(condition):
    """Wait for what another thread does."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never came true")


def spec(request_id="r", *, prompt=range(10), max_tokens=8, **fields):
    return GenerateSpec(request_id=request_id, prompt_token_ids=tuple(prompt), max_tokens=max_tokens, **fields)


@dataclass
class Engine:
    handle: EngineHandle
    loop: EngineLoop
    scheduler: Scheduler
    pool: BlockPool
    runner: HeldRunner
    decoder: Decoder
    clock: object

    async def run(self, request):
        return await read(await self.handle.submit(request))

    async def step(self):
        """Let the held step run and wait until the next one is held."""
        await until(lambda: self.runner.is_held)
        num_reached = self.runner.num_reached
        self.runner.let()
        await until(lambda: self.runner.num_reached > num_reached)

    async def quiescent(self):
        """Nothing is left anywhere, and the mirror holds what the pool holds."""
        await self.handle.drain()
        await until(lambda: not self.scheduler.has_work)
        assert (self.handle.num_in_flight, self.handle.num_queued, len(self.decoder)) == (0, 0, 0)
        assert self.scheduler.audit() == 0
        assert self.pool.num_free == self.pool.num_blocks
        mirror = self.handle.mirror
        assert set(mirror.held) == {wire_hash(digest) for digest in self.pool.cached_hashes()}
        assert mirror.digest == (len(mirror.held), reduce(xor, mirror.held, 0))


class Delta(NamedTuple):
    text: str
    token_ids: list[int]
    stop_string: str | None


class Letters:
    """A text machine whose tokens are characters. It holds back what may become a stop string, and fails on demand."""

    def __init__(self, request, *, fails_after=None):
        self._stops = request.stop_strings
        self._held = []
        self._num_left = fails_after

    def push(self, token_ids, *, is_last):
        for token in token_ids:
            self._spend()
            self._held.append(token)
            text = _letters(self._held)
            for stop in self._stops:
                if text.endswith(stop):
                    return Delta(text[: -len(stop)], self._held, stop)
        num_kept = 0
        if not is_last:
            num_kept = max(
                (n for n in range(1, len(self._held) + 1) if self._may_stop(self._held[-n:])),
                default=0,
            )
        cut = len(self._held) - num_kept
        released, self._held = self._held[:cut], self._held[cut:]
        return Delta(_letters(released), released, None)

    def _may_stop(self, token_ids):
        text = _letters(token_ids)
        return any(stop.startswith(text) and stop != text for stop in self._stops)

    def _spend(self):
        if self._num_left is not None:
            if self._num_left == 0:
                raise ValueError("an odd sequence of bytes")
            self._num_left -= 1


def _letters(token_ids):
    return "".join(map(chr, token_ids))
