"""Between the wire's messages and this project's values, in pure functions.

It knows shapes only: ranges and meanings are checked in `edge`. What belongs to higher layers comes in as plain
arguments. No message that is built here reaches 1 MiB, because a client's default limit is 4 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from headstart.contract.events import CacheEvent, Cleared, Digest, EventBatch, Removed, Stored
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2, prefix_cache_pb2

MIN_LOGPROB = -9999.0
"""What an infinitely unlikely token is reported with, because JSON has no infinities."""

_LOGPROBS_PER_MESSAGE = 21_000  # a token's own and its alternatives', some 40 bytes each
_IDS_PER_MESSAGE = 100_000  # of at most 5 bytes
_CONTENT_BYTES_PER_MESSAGE = 512 * 1024

LogprobColumns = tuple[int, float, Sequence[int], Sequence[float]]
"""Token id, its logprob, and the ids and logprobs of the most likely alternatives, best first."""


class UsageCounts(NamedTuple):
    """Tokens of one choice. `completion_tokens` counts those of earlier attempts too."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class RequestTimes(NamedTuple):
    """Seconds on one monotonic clock; 0.0 means "never"."""

    arrival_s: float
    admitted_s: float
    first_token_s: float
    end_s: float


class LoadFields(NamedTuple):
    """A pod's load at `seq`. `accepted` are the request ids taken in since the last record."""

    seq: int
    running: int
    waiting: int
    pending_prefill_tokens: int
    accepted: Sequence[str]
    free_blocks: int
    prefill_tokens_per_s: float
    decode_step_s: float
    step_age_s: float
    draining: bool


# ---- Inference


def encode_chunks(
    index: int,
    text: str,
    token_ids: Sequence[int],
    *,
    logprobs: Sequence[LogprobColumns] = (),
    token_bytes: Callable[[int], bytes],
) -> Iterator[inference_pb2.GenerateResponse]:
    """One choice's text and the tokens that it completes, in one message: a token counts as sent with its text.

    Only logprobs that are too many for one message follow in others, which nearly never happens.
    """
    chunk = inference_pb2.Chunk(index=index, text=text, token_ids=token_ids)
    size = _tokens_per_message(logprobs)
    for start in range(0, len(logprobs), size):
        if start:
            yield inference_pb2.GenerateResponse(chunk=chunk)
            chunk = inference_pb2.Chunk(index=index)
        part = logprobs[start : start + size]
        chunk.logprobs.extend(_encode_logprobs(entry, token_bytes) for entry in part)
    yield inference_pb2.GenerateResponse(chunk=chunk)


def encode_prompt_echo(index: int, prompt_token_ids: Sequence[int]) -> Iterator[inference_pb2.GenerateResponse]:
    """The prompt's ids, in as many chunks as they need."""
    for start in range(0, len(prompt_token_ids), _IDS_PER_MESSAGE):
        ids = prompt_token_ids[start : start + _IDS_PER_MESSAGE]
        yield inference_pb2.GenerateResponse(chunk=inference_pb2.Chunk(index=index, prompt_token_ids=ids))


def encode_prompt_logprobs(
    index: int, entries: Sequence[LogprobColumns], *, token_bytes: Callable[[int], bytes]
) -> Iterator[inference_pb2.GenerateResponse]:
    """Logprobs of prompt positions, in as many chunks as they need."""
    size = _tokens_per_message(entries)
    for start in range(0, len(entries), size):
        part = [_encode_logprobs(entry, token_bytes) for entry in entries[start : start + size]]
        yield inference_pb2.GenerateResponse(chunk=inference_pb2.Chunk(index=index, prompt_logprobs=part))


def encode_finished(
    index: int,
    reason: str,
    *,
    matched_stop: str | int | None = None,
    usage: UsageCounts,
    times: RequestTimes,
    num_preemptions: int = 0,
) -> inference_pb2.GenerateResponse:
    """The end of one choice. `reason` is one of the wire's words: stop, length, cancelled, error.

    A `matched_stop` of type str is the stop string that ended it, of type int the stop token id.
    """
    finished = inference_pb2.Finished(
        index=index,
        finish_reason=f"FINISH_REASON_{reason.upper()}",
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        ),
        timings=inference_pb2.Timings(
            queue_s=_between(times.arrival_s, times.admitted_s),
            prefill_s=_between(times.admitted_s, times.first_token_s),
            decode_s=_between(times.first_token_s, times.end_s),
            ttft_s=_between(times.arrival_s, times.first_token_s),
            num_preemptions=num_preemptions,
        ),
    )
    if isinstance(matched_stop, str):
        finished.stop_string = matched_stop
    elif matched_stop is not None:
        finished.stop_token_id = matched_stop
    return inference_pb2.GenerateResponse(finished=finished)


def encode_model(identity: PodIdentity) -> inference_pb2.Model:
    return inference_pb2.Model(
        name=identity.model,
        context_length=identity.context_length,
        block_size=identity.block_size,
        hash_root_digest=identity.hash_root_digest,
        vocab_size=identity.vocab_size,
        features=dict(identity.features),
        eos_token_ids=identity.eos_token_ids,
    )


def encode_tokenizer(document: bytes, digest: str) -> Iterator[inference_pb2.TokenizerChunk]:
    """A tokenizer's document in pieces; the last one carries the digest, so even an empty document has one piece."""
    starts = range(0, max(len(document), 1), _CONTENT_BYTES_PER_MESSAGE)
    for start in starts:
        yield inference_pb2.TokenizerChunk(
            content=document[start : start + _CONTENT_BYTES_PER_MESSAGE],
            digest=digest if start == starts[-1] else "",
        )


def _tokens_per_message(entries: Sequence[LogprobColumns]) -> int:
    """How many of them keep a message well below a mebibyte."""
    return max(1, _LOGPROBS_PER_MESSAGE // max((1 + len(entry[2]) for entry in entries), default=1))


def _encode_logprobs(entry: LogprobColumns, token_bytes: Callable[[int], bytes]) -> inference_pb2.TokenLogprobs:
    token_id, logprob, top_ids, top_logprobs = entry
    return inference_pb2.TokenLogprobs(
        token_id=token_id,
        logprob=_finite(logprob),
        token_bytes=token_bytes(token_id),
        top=[
            inference_pb2.TokenLogprobs.Alternative(
                token_id=top_id, logprob=_finite(top_logprob), token_bytes=token_bytes(top_id)
            )
            for top_id, top_logprob in zip(top_ids, top_logprobs, strict=True)
        ],
    )


def _finite(logprob: float) -> float:
    """The floor for -inf and for NaN, which fails every comparison."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB


def _between(start_s: float, end_s: float) -> float:
    return max(0.0, end_s - start_s) if start_s > 0.0 and end_s > 0.0 else 0.0


# ---- PrefixCache


def encode_hello(identity: PodIdentity) -> prefix_cache_pb2.CacheUpdate:
    hello = prefix_cache_pb2.Hello(
        epoch=identity.epoch,
        pod_name=identity.pod_name,
        pod_uid=identity.pod_uid,
        model=identity.model,
        model_fingerprint=identity.model_fingerprint,
        tokenizer_fingerprint=identity.tokenizer_fingerprint,
        hash_root_digest=identity.hash_root_digest,
        block_size=identity.block_size,
        numerics_id=identity.numerics_id,
        capacity_blocks=identity.capacity_blocks,
        max_num_seqs=identity.max_num_seqs,
        hash_root_fields=dict(identity.hash_root_fields),
    )
    return prefix_cache_pb2.CacheUpdate(hello=hello)


def encode_snapshot(
    seq: int, columns: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> Iterator[prefix_cache_pb2.CacheUpdate]:
    """The (hashes, parents) columns held at `seq`, one message each; the last is marked, an empty cache sends one."""
    pending: tuple[Sequence[int], Sequence[int]] = ((), ())
    is_first = True
    for part in columns:
        if not is_first:
            yield _snapshot_chunk(seq, pending, is_last=False)
        pending, is_first = part, False
    yield _snapshot_chunk(seq, pending, is_last=True)


def encode_delta(batch: EventBatch) -> prefix_cache_pb2.CacheUpdate:
    """One sealed batch, and the digest of the set after it."""
    delta = prefix_cache_pb2.Delta(prev_seq=batch.seq - 1, seq=batch.seq)
    for event in batch.events:
        if isinstance(event, Stored):
            delta.events.add(stored=prefix_cache_pb2.Stored(hash=event.hash, parent=event.parent))
        elif isinstance(event, Removed):
            delta.events.add(removed=event.hash)
        else:
            delta.events.add(cleared=prefix_cache_pb2.Cleared())
    return prefix_cache_pb2.CacheUpdate(delta=delta, digest=encode_digest(batch.seq, batch.digest))


def decode_delta(delta: prefix_cache_pb2.Delta) -> tuple[CacheEvent, ...]:
    """The events of a delta, in order. Raises ValueError for an event of a kind that this build does not know."""
    return tuple(_decode_event(event) for event in delta.events)


def encode_digest(seq: int, digest: Digest) -> prefix_cache_pb2.Digest:
    return prefix_cache_pb2.Digest(seq=seq, count=digest.num_hashes, xor=digest.xor)


def encode_load(load: LoadFields) -> prefix_cache_pb2.Load:
    return prefix_cache_pb2.Load(**load._asdict())


def decode_load(load: prefix_cache_pb2.Load) -> LoadFields:
    return LoadFields(
        seq=load.seq,
        running=load.running,
        waiting=load.waiting,
        pending_prefill_tokens=load.pending_prefill_tokens,
        accepted=tuple(load.accepted),
        free_blocks=load.free_blocks,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        decode_step_s=load.decode_step_s,
        step_age_s=load.step_age_s,
        draining=load.draining,
    )


def _snapshot_chunk(
    seq: int, columns: tuple[Sequence[int], Sequence[int]], *, is_last: bool
) -> prefix_cache_pb2.CacheUpdate:
    hashes, parents = columns
    chunk = prefix_cache_pb2.SnapshotChunk(seq=seq, hashes=hashes, parents=parents, last=is_last)
    return prefix_cache_pb2.CacheUpdate(snapshot=chunk)


def _decode_event(event: prefix_cache_pb2.CacheEvent) -> CacheEvent:
    match event.WhichOneof("event"):
        case "stored":
            return Stored(event.stored.hash, event.stored.parent)
        case "removed":
            return Removed(event.removed)
        case "cleared":
            return Cleared()
        case unknown:
            raise ValueError(f"an event of an unknown kind: {unknown}")
