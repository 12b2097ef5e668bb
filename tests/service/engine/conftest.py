"""Starts whole engines for tests, and checks at the end of each that nothing was left behind."""

import time

import pytest_asyncio
from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.engine.decoder import Decoder
from headstart.engine.handle import EngineHandle
from headstart.engine.loop import EngineLoop, EngineParts
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler
from service.engine.harness import BLOCK, Engine, HeldRunner


@pytest_asyncio.fixture
async def start_engine():
    """A function that starts an engine; afterwards each that still lives must have nothing left."""
    engines = []

    async def start(
        *,
        num_blocks=64,
        budget=64,
        max_num_seqs=8,
        max_queued_requests=1000,
        max_queued_tokens=100_000,
        make_stream_decoder=None,
        clock=time.monotonic,
        warm_up=None,
        audit_after_s=60.0,
        scheduler_type=Scheduler,
        runner=None,
        **parts,
    ):
        log = EventLog()
        pool = BlockPool(num_blocks, log)
        scheduler = scheduler_type(
            BlockManager(pool, block_size=BLOCK, root=b"root" * 8),
            SchedulerLimits(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, max_len=4096),
            clock=clock,
        )
        runner = runner or HeldRunner()
        decoder = Decoder(make_stream_decoder)
        loop = EngineLoop(
            EngineParts(scheduler=scheduler, runner=runner, decoder=decoder, log=log, **parts),
            clock=clock,
            audit_after_s=audit_after_s,
        )
        handle = EngineHandle(loop, max_queued_requests=max_queued_requests, max_queued_tokens=max_queued_tokens)
        engine = Engine(handle, loop, scheduler, pool, runner, decoder, clock)
        engines.append(engine)
        await handle.start(warm_up=warm_up)
        return engine

    yield start
    for engine in engines:
        engine.runner.free()
        if engine.handle.is_alive:
            await engine.quiescent()
        await engine.handle.close()
