"""A request as one group of pods understands it: token ids instead of text, and the hashes of its blocks.

Pure but for the threads that tokenize and hash. Knows nothing of loads or of which pod is chosen.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, replace
from typing import NamedTuple

from headstart.contract.prefix import encode_extras, reads_cache
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.wire import outer_fields, unpack_ids

from headstart_operator.decision.catalog import Entry
from headstart_operator.decision.hashing import PrefixHasher
from headstart_operator.decision.identity import GroupKey
from headstart_operator.decision.score import Query
from headstart_operator.decision.view import PodView

_MANY_IDS_BYTES = 2048  # from here on, reading them from the bytes takes less time than making a list of ints
_LONG_PROMPT_TOKENS = 16_384  # hashed in a thread: a longer one would keep the event loop for milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A prompt as one group of pods understands it. `request` has token ids, an id and a seed.

    `encoded` is the request once more, as a pod gets it but for the id that it has there.
    """

    group: GroupKey
    entry: Entry
    request: pb.GenerateRequest
    encoded: bytes
    query: Query
    view: PodView
    """Any pod of the group: what it says of blocks and of the hash root holds for all."""

    def least_len(self, longest: int) -> int:
        """Tokens that a pod must take to run this as well as one that takes `longest` would.

        A pod that would cut the output short of `max_tokens` is not enough while another gives all of it.
        """
        num_prompt_tokens = len(self.request.token_ids.ids)
        whole = num_prompt_tokens + self.request.max_tokens
        if num_prompt_tokens < whole <= longest:
            return whole
        resumed = max((len(choice.token_ids) for choice in self.request.resume.choices), default=0)
        # More than the longest takes is refused by that one, in its words.
        return min(longest, num_prompt_tokens + max(1, self.request.min_tokens, resumed))

    async def continued(self, request: pb.GenerateRequest, numerics_id: str) -> Reading:
        """The reading of what is left to do: tokens that were delivered count as prompt."""
        reading = await understand(_encode(request), self.entry, self.view)
        return replace(reading, query=reading.query._replace(numerics_id=numerics_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked request and its readings, the largest group's first.

    `name_on_pods` is new for each job: a pod may still be at work on an earlier one of this id that has been cancelled.
    """

    request_id: str
    name_on_pods: str
    model: str
    tenant: str
    readings: tuple[Reading, ...]


class Tokenized(NamedTuple):
    """A request as pods get it, with token ids for a prompt, an id and a seed: the message, its bytes and the ids.

    The ids are an `array("I")`: to read them out of a message takes longer than to hash them.
    """

    request: pb.GenerateRequest
    encoded: bytes
    token_ids: array[int]


async def tokenize(request: pb.GenerateRequest, entry: Entry, *, request_id: str, seed: int) -> Tokenized:
    """Token ids for a prompt that has none. One that has them gets id and seed in place: it is not copied.

    Whether the group takes as many is not looked at: others of the same tokenizer may. Raises InvalidRequestError,
    FailedPreconditionError without a tokenizer, UnavailableError when too many wait for it.
    """
    if request.WhichOneof("prompt") != "token_ids":
        token_ids = await entry.prompts.read(request)
        prompt = request
        request = pb.GenerateRequest()
        request.CopyFrom(prompt)
        request.token_ids.ids.extend(token_ids)
    request.request_id = request_id
    request.sampling.seed = seed
    return _encode(request)


def _encode(request: pb.GenerateRequest) -> Tokenized:
    """A request with token ids, and the ids once more."""
    encoded = request.SerializeToString()
    ids = _packed_ids(encoded) if len(encoded) > _MANY_IDS_BYTES else None
    return Tokenized(request, encoded, array("I", request.token_ids.ids[:]) if ids is None else ids)


def _packed_ids(encoded: bytes) -> array[int] | None:
    """The prompt's ids from the bytes of a request; None when they are none of a vocabulary."""
    for field in outer_fields(encoded):
        if field.number == pb.GenerateRequest.TOKEN_IDS_FIELD_NUMBER:
            prompt = encoded[field.content : field.stop]
            ids = next(outer_fields(prompt), None)  # it has no other field
            return None if ids is None else unpack_ids(prompt[ids.content : ids.stop])
    return None


async def understand(tokenized: Tokenized, entry: Entry, view: PodView) -> Reading:
    """The reading of a tokenized request in the group of `view`."""
    request, encoded, token_ids = tokenized
    if request.resume.choices:
        token_ids = token_ids + array("I", request.resume.choices[0].token_ids)
    room = max(1, entry.limits.max_len - len(token_ids))
    query = Query(
        prompt_tokens=len(token_ids),
        max_tokens=min(request.max_tokens, room) if request.HasField("max_tokens") else room,
        hashes=await _hashes(token_ids, request.cache_salt, view, entry.hasher),
        reads_cache=reads_cache(request.prompt_logprobs if request.HasField("prompt_logprobs") else None),
        tie_key=hash(request.request_id),
    )
    return Reading(group=view.group, entry=entry, request=request, encoded=encoded, query=query, view=view)


async def _hashes(token_ids: array[int], cache_salt: str, view: PodView, hasher: PrefixHasher) -> list[int]:
    """Of the full blocks, as they travel; none when the hash root is not known."""
    if view.hash_root is None:
        return []
    arguments = (view.hash_root, token_ids, view.block_size, encode_extras(cache_salt=cache_salt))
    if len(token_ids) > _LONG_PROMPT_TOKENS:
        return await asyncio.to_thread(hasher.hashes, *arguments)
    return hasher.hashes(*arguments)
