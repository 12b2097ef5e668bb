"""From a commit's tokens to the chunks that leave: text, stop strings, and the logprobs that belong to each token.

It does not know the scheduler, the runner or the streams, and decides nothing but where a stop string ends a request.
State, one entry per live request, is owned by the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headstart.contract.request import GenerateSpec
from headstart.core.step import Chunk, Finish, FinishReason, RequestStats, StepUpdates, TokenLogprobs
from headstart.errors import InvalidRequestError

if TYPE_CHECKING:  # a pod without a tokenizer does not load the tokenizer library
    from headstart.text.detokenizer import StreamDecoder

_LOGGER = logging.getLogger(__name__)
_FAULT = Finish(FinishReason.ERROR, error="the output could not be turned into text")


@dataclass(slots=True)
class _Entry:
    """One live request. `held` are logprobs whose tokens have not left; `num_held` counts such tokens."""

    spec: GenerateSpec
    text: StreamDecoder | None
    num_held: int = 0
    held: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    has_output: bool = False


class Decoder:
    """One incremental text machine per live request. `make_stream_decoder` None: no tokenizer, token ids only."""

    def __init__(self, make_stream_decoder: Callable[[GenerateSpec], StreamDecoder] | None) -> None:
        self.num_faults = 0
        self._make_stream_decoder = make_stream_decoder
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def start(self, spec: GenerateSpec) -> None:
        """Follow a request. Its resume tokens are taken as already delivered.

        Raises InvalidRequestError for stop strings without a tokenizer, and what the tokenizer raises.
        """
        if self._make_stream_decoder is None:
            if spec.stop_strings:
                raise InvalidRequestError("stop_strings", "this pod has no tokenizer, use stop_token_ids")
            self._entries[spec.request_id] = _Entry(spec, None)
            return
        text = self._make_stream_decoder(spec)
        if spec.resume_token_ids:
            text.prime(spec.resume_token_ids)
        self._entries[spec.request_id] = _Entry(spec, text)

    def restart(self, request_id: str) -> None:
        """The request is computed from its start again: prompt logprobs gathered so far will come again."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.prompt_logprobs.clear()

    def push(self, updates: StepUpdates) -> list[Chunk]:
        """Chunks of what may leave now, at most one a request.

        A chunk with `finish` but no `stats` is of a request that ends here (a stop string, or a fault of its own
        text): whoever called ends it in the scheduler too. Entries of ended requests are gone.
        """
        self._gather_prompt_logprobs(updates)
        chunks = []
        for request_id, token_ids in zip(updates.request_ids, updates.new_tokens, strict=True):
            entry = self._entries.get(request_id)
            if entry is None:
                continue
            ending = updates.finished.get(request_id)
            entry.held.extend(updates.logprobs.get(request_id, ()))
            try:
                chunk = _decode(entry, token_ids, ending)
            except Exception:
                # One request's odd output must not end the others.
                _LOGGER.exception("decoding the output of request %s failed", request_id)
                self.num_faults += 1
                chunk = Chunk(request_id, "", [], finish=_FAULT, stats=ending[1] if ending else None)
            if chunk is None:
                continue
            chunks.append(chunk)
            if chunk.finish is not None:
                del self._entries[request_id]
        return chunks

    def drop(self, request_id: str) -> None:
        """Forget a request that ended elsewhere. Held-back text is lost with it. Idempotent."""
        self._entries.pop(request_id, None)

    def _gather_prompt_logprobs(self, updates: StepUpdates) -> None:
        for request_id, logprobs in updates.prompt_logprobs.items():
            entry = self._entries.get(request_id)
            # After the first output token only a preemption computes prompt positions again: they were delivered.
            if entry is not None and not entry.has_output:
                entry.prompt_logprobs.extend(logprobs)


def _decode(entry: _Entry, token_ids: list[int], ending: tuple[Finish, RequestStats] | None) -> Chunk | None:
    """The next chunk of a request, None when nothing may leave yet."""
    text, released, stop_string = _advance(entry, token_ids, ending)
    entry.num_held += len(token_ids) - len(released)
    finish, stats = ending if ending is not None else (None, None)
    if stop_string and _is_ended_by_text(entry, finish):
        finish = Finish(FinishReason.STOP)
    else:
        stop_string = ""
    logprobs, entry.held = entry.held[: len(released)], entry.held[len(released) :]
    prompt_logprobs: list[TokenLogprobs] = []
    if token_ids or finish is not None:
        entry.has_output = True
        prompt_logprobs, entry.prompt_logprobs = entry.prompt_logprobs, []
    if not (text or released or prompt_logprobs or finish is not None):
        return None
    return Chunk(
        entry.spec.request_id,
        text,
        released,
        logprobs,
        prompt_logprobs,
        finish=finish,
        matched_stop_string=stop_string,
        stats=stats,
    )


def _advance(
    entry: _Entry, token_ids: list[int], ending: tuple[Finish, RequestStats] | None
) -> tuple[str, list[int], str]:
    """Text and tokens that may leave now, and the stop string that was matched or "".

    Eos and a stop id end the text before them, unless the request wants its stop delivered; as tokens they do leave.
    """
    if entry.text is None:
        return "", token_ids, ""
    is_stop = ending is not None and ending[0].reason is FinishReason.STOP
    num_silent = 1 if is_stop and token_ids and not entry.spec.include_stop else 0
    audible = token_ids[: len(token_ids) - num_silent]
    delta = entry.text.push(audible, is_last=ending is not None)
    if delta.stop_string:
        return delta.text, list(delta.token_ids), delta.stop_string
    return delta.text, [*delta.token_ids, *token_ids[len(audible) :]], ""


def _is_ended_by_text(entry: _Entry, finish: Finish | None) -> bool:
    """Whether a match of a stop string, which has happened, is why the request ends.

    Tokens left over came after the match: the match was first, whatever they say. Else the last token made both: eos
    and stop ids go before stop strings; a length does not, because the text is complete as its sender asked.
    """
    if finish is None or finish.reason is FinishReason.LENGTH:
        return True
    return finish.reason is FinishReason.STOP and entry.num_held > 0
