"""One Generate call on its way out: the chunks of its choices become messages, in order, with one end per choice.

It knows the wire and the engine's chunks, not how either is made. Owner of its state: the call's handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio

from headstart.contract import codec
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, FinishReason, RequestStats
from headstart.engine.messages import DEADLINE_PASSED
from headstart.engine.stream import RequestStream
from headstart.errors import DeadlineExceededError, HeadstartError, InternalError, UnavailableError


class Generation:
    """Relays `specs`, all choices of one request, to `context`."""

    def __init__(
        self,
        specs: Sequence[GenerateSpec],
        context: grpc.aio.ServicerContext[Any, Any],
        *,
        token_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
        echoes_prompt: bool = False,
    ) -> None:
        self._specs = specs
        self._context = context
        self._token_bytes = token_bytes
        self._clock = clock
        self._echoes_prompt = echoes_prompt
        self._completion = [len(spec.resume_token_ids) for spec in specs]
        self._unfinished = set(range(len(specs)))
        self._failure: HeadstartError | None = None
        self.cached_tokens = 0

    async def relay(self, streams: Sequence[RequestStream]) -> None:
        """Write everything until each choice has ended.

        Raises the error that a choice ended with, after each choice has its `finished`: the call's status comes last.
        """
        try:
            async for index, chunk in _interleaved(streams):
                await self._write(index, chunk)
        except HeadstartError as error:
            # The engine broke off. What the caller got so far still gets its end.
            for index in sorted(self._unfinished):
                await self._write_finished(index, Finish(FinishReason.CANCELLED), None)
            raise error
        if self._failure is not None:
            raise self._failure

    async def _write(self, index: int, chunk: Chunk) -> None:
        context = self._context
        if index == 0 and self._echoes_prompt:
            self._echoes_prompt = False
            for message in codec.encode_prompt_echo(0, self._specs[0].prompt_token_ids):
                await context.write(message)
        for message in codec.encode_prompt_logprobs(index, chunk.prompt_logprobs, token_bytes=self._token_bytes):
            await context.write(message)
        if chunk.text or chunk.token_ids:
            self._completion[index] += len(chunk.token_ids)
            for message in codec.encode_chunks(
                index, chunk.text, chunk.token_ids, logprobs=chunk.logprobs, token_bytes=self._token_bytes
            ):
                await context.write(message)
        if chunk.finish is not None:
            await self._write_finished(index, chunk.finish, chunk.stats, chunk.matched_stop_string)

    async def _write_finished(
        self, index: int, finish: Finish, stats: RequestStats | None, stop_string: str = ""
    ) -> None:
        self._unfinished.discard(index)
        if self._failure is None:
            self._failure = _failure(finish)
        cached_tokens = stats.cached_tokens if stats else 0
        if index == 0:
            self.cached_tokens = cached_tokens
        message = codec.encode_finished(
            index,
            finish.reason.value,
            matched_stop=stop_string or finish.matched_stop,
            usage=codec.UsageCounts(
                prompt_tokens=len(self._specs[index].prompt_token_ids),
                cached_tokens=cached_tokens,
                completion_tokens=self._completion[index],
            ),
            times=codec.RequestTimes(
                arrival_s=stats.arrival_s if stats else 0.0,
                admitted_s=stats.admitted_s if stats else 0.0,
                first_token_s=stats.first_token_s if stats else 0.0,
                end_s=self._clock(),
            ),
            num_preemptions=stats.num_preemptions if stats else 0,
        )
        await self._context.write(message)


def _failure(finish: Finish) -> HeadstartError | None:
    """The status that a choice's end gives the call; None for a good end."""
    if finish == DEADLINE_PASSED:
        return DeadlineExceededError("the deadline passed before the request was done")
    if finish.reason is FinishReason.ERROR:
        return InternalError(finish.error or "the request failed")
    if finish.reason is FinishReason.CANCELLED:
        return UnavailableError("the server stopped this request; resume it on another pod")
    return None


async def _interleaved(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, Chunk]]:
    """The chunks of all streams as they come, with the stream's index."""
    if len(streams) == 1:
        async for chunk in streams[0]:
            yield 0, chunk
        return
    pending = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = pending.pop(future)
                chunk = future.result()
                yield index, chunk
                if chunk.finish is None:
                    pending[asyncio.ensure_future(anext(streams[index]))] = index
    finally:
        for future in pending:
            future.cancel()
