"""One request on its way out: the chunks of its choices become messages, in order, with one end per choice.

It knows the wire and the engine's chunks, not how either is made. Owner of its state: the call that it answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from headstart.contract import codec
from headstart.contract.proto.inference_pb2 import GenerateResponse
from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, FinishReason, RequestStats
from headstart.edge.interleave import interleave
from headstart.engine.messages import DEADLINE_PASSED
from headstart.engine.stream import RequestStream
from headstart.errors import DeadlineExceededError, HeadstartError, InternalError, UnavailableError


class ChoiceEnd(NamedTuple):
    """How one choice ended. `stats` is None when the engine broke off, or never ran it."""

    reason: FinishReason
    stats: RequestStats | None
    completion_tokens: int


class Generation:
    """The messages of `specs`, all choices of one request. `ends` fills up in the order in which they end.

    `resumed_ends` are the last chunks, by index, of choices that were over before they came here. The others are the
    `specs_to_run`, in order.
    """

    def __init__(
        self,
        specs: Sequence[GenerateSpec],
        *,
        token_bytes: Callable[[int], bytes],
        clock: Callable[[], float],
        echoes_prompt: bool = False,
        resumed_ends: Mapping[int, Chunk] | None = None,
    ) -> None:
        self._specs = specs
        self._token_bytes = token_bytes
        self._clock = clock
        self._echoes_prompt = echoes_prompt
        self._resumed_ends = resumed_ends or {}
        self._to_run = [index for index in range(len(specs)) if index not in self._resumed_ends]
        self.specs_to_run = [specs[index] for index in self._to_run]
        self._completion = [len(spec.resume_token_ids) for spec in specs]
        self._unfinished = set(range(len(specs)))
        self._failure: HeadstartError | None = None
        self.ends: list[ChoiceEnd] = []

    async def messages(self, streams: Sequence[RequestStream]) -> AsyncGenerator[GenerateResponse, None]:
        """Everything until each choice has ended. `streams` are those of `specs_to_run`.

        Raises the error that a choice ended with, after each choice has its `finished`: the call's status comes last.
        """
        for index, chunk in self._resumed_ends.items():
            for message in self._encode(index, chunk):
                yield message
        try:
            async with aclosing(interleave(streams)) as chunks:
                async for position, chunk in chunks:
                    for message in self._encode(self._to_run[position], chunk):
                        yield message
        except HeadstartError:
            # The engine broke off. What the caller got so far still gets its end.
            for index in sorted(self._unfinished):
                yield self._encode_finished(index, Finish(FinishReason.CANCELLED), None)
            raise
        if self._failure is not None:
            raise self._failure

    def end_unread(self, streams: Sequence[RequestStream], otherwise: FinishReason) -> None:
        """Note the ends that no message told, because the caller left: what the engine says of them, else `otherwise`.

        `streams` as in `messages`, each at its end, or none when the engine was not asked.
        """
        by_index = dict(zip(self._to_run, streams, strict=False))
        for index in sorted(self._unfinished):
            stream, num_tokens = by_index.get(index), len(self._specs[index].resume_token_ids)
            finish = stream.finish if stream is not None else None
            reason = finish.reason if finish is not None else otherwise
            stats = stream.stats if stream is not None else None
            self.ends.append(ChoiceEnd(reason, stats, num_tokens + (stream.num_tokens if stream is not None else 0)))
        self._unfinished.clear()

    def _encode(self, index: int, chunk: Chunk) -> Iterator[GenerateResponse]:
        if index == 0 and self._echoes_prompt:
            self._echoes_prompt = False
            yield from codec.encode_prompt_echo(0, self._specs[0].prompt_token_ids)
        yield from codec.encode_prompt_logprobs(index, chunk.prompt_logprobs, token_bytes=self._token_bytes)
        if chunk.text or chunk.token_ids:
            self._completion[index] += len(chunk.token_ids)
            yield from codec.encode_chunks(
                index, chunk.text, chunk.token_ids, logprobs=chunk.logprobs, token_bytes=self._token_bytes
            )
        if chunk.finish is not None:
            yield self._encode_finished(index, chunk.finish, chunk.stats, chunk.matched_stop_string)

    def _encode_finished(
        self, index: int, finish: Finish, stats: RequestStats | None, stop_string: str = ""
    ) -> GenerateResponse:
        self._unfinished.discard(index)
        if self._failure is None:
            self._failure = _failure(finish)
        self.ends.append(ChoiceEnd(finish.reason, stats, self._completion[index]))
        return codec.encode_finished(
            index,
            finish.reason.value,
            matched_stop=stop_string or finish.matched_stop,
            usage=codec.UsageCounts(
                prompt_tokens=len(self._specs[index].prompt_token_ids),
                cached_tokens=stats.cached_tokens if stats else 0,
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


def _failure(finish: Finish) -> HeadstartError | None:
    """The status that a choice's end gives the call; None for a good end."""
    if finish == DEADLINE_PASSED:
        return DeadlineExceededError("the deadline passed before the request was done")
    if finish.reason is FinishReason.ERROR:
        return InternalError(finish.error or "the request failed")
    if finish.reason is FinishReason.CANCELLED:
        return UnavailableError("the server stopped this request; resume it on another pod")
    return None
