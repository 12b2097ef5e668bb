"""An engine of this process, as `headstart bench serve` measures it without any server around it.

Counts the tokens of a stream as they come and does nothing else with them. Owner of the engine: the client.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator

from headstart.app.assembly import Assembly, warm_up_spec
from headstart.cli.bench.serve_drive import ModelLimits
from headstart.cli.bench.serve_workloads import Ask
from headstart.contract.request import GenerateSpec, SamplingParams
from headstart.core.step import FinishReason
from headstart.errors import InternalError


class EngineClient:
    """An engine of this process without any server, on the event loop that `start` was called on."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    async def start(self) -> None:
        """The engine's thread, its self-test, and the collector told as a pod tells it."""
        await self._assembly.engine.start(warm_up=warm_up_spec(self._assembly))
        gc.collect()
        gc.freeze()

    async def limits(self) -> ModelLimits:
        return ModelLimits(self._assembly.limits.max_len, self._assembly.limits.vocab_size)

    async def stream(self, ask: Ask) -> AsyncGenerator[int, None]:
        spec = GenerateSpec(
            request_id=ask.name,
            prompt_token_ids=tuple(ask.prompt),
            max_tokens=ask.num_output,
            sampling=SamplingParams(temperature=0.0),
            ignore_eos=True,
        )
        stream = await self._assembly.engine.submit(spec)
        try:
            async for chunk in stream:
                if chunk.token_ids:
                    yield len(chunk.token_ids)
                if chunk.finish is not None and chunk.finish.reason is not FinishReason.LENGTH:
                    raise InternalError(f"{ask.name} ended {chunk.finish.reason}: {chunk.finish.error}")
        finally:
            await stream.aclose()

    async def close(self) -> None:
        gc.unfreeze()
        await self._assembly.engine.close()
