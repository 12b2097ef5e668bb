"""The mutable records of one request. The scheduler owns `RequestState`, the block manager owns `BlockTable`.

Two counts tell all about progress: `len(tokens)` tokens are known, `num_computed` of them have their K/V in the cache.
The last sampled token is known and not computed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from headstart.contract.prefix import encode_extras
from headstart.contract.request import GenerateSpec


class RequestStatus(Enum):
    """Where a request is. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class PrefixMatch(NamedTuple):
    """What a lookup found beyond the blocks that a table already has. Nothing is pinned by it.

    `num_tokens` counts from position 0 and ends at least one token before the end of what is known.
    """

    block_ids: list[int]
    num_tokens: int


class BlockTable:
    """The blocks of one request, append-only while it runs. Owner: the block manager.

    `hashes` are the chain hashes of its full blocks of known tokens, each computed once. The first `num_registered`
    blocks were hits or offered to the cache. `edge` is the smallest end position for which the manager must act:
    below it a row needs no new block and completes none. Positions below `shared_end` lie in hit blocks. `is_lender`:
    another request hit, in this step, a block that this one registered in this step.
    """

    __slots__ = ("block_ids", "edge", "extras", "hashes", "is_lender", "num_registered", "shared_end")

    def __init__(self, extras: bytes = b"") -> None:
        self.block_ids: list[int] = []
        self.hashes: list[bytes] = []
        self.extras = extras
        self.num_registered = 0
        self.shared_end = 0
        self.edge = 0
        self.is_lender = False


class RequestState:
    """One request from `add` to its end. Owner and only writer: the scheduler.

    `tokens` are prompt and output; `max_known` is where its length ends it. `stop_ids` holds eos too, unless ignored.
    `edge` is its table's, kept here for the fast path. `is_aged`: it waited so long that it goes before all others.
    `is_prefilling` is true from an admission until the first token sampled after it. Times are monotonic, 0.0 = never.
    """

    __slots__ = (
        "admitted_s",
        "arrival",
        "arrival_s",
        "cached_tokens",
        "drafts",
        "edge",
        "first_token_s",
        "is_aged",
        "is_prefilling",
        "max_known",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "queue_key",
        "request_id",
        "spec",
        "status",
        "stop_ids",
        "table",
        "tokens",
        "waiting_since",
    )

    def __init__(self, spec: GenerateSpec, *, max_len: int, eos_token_ids: frozenset[int]) -> None:
        self.spec = spec
        self.request_id = spec.request_id
        self.tokens = [*spec.prompt_token_ids, *spec.resume_token_ids]
        self.num_prompt = len(spec.prompt_token_ids)
        self.num_computed = 0
        self.max_known = min(self.num_prompt + spec.max_tokens, max_len)
        self.stop_ids = spec.stop_token_ids if spec.ignore_eos else spec.stop_token_ids | eos_token_ids
        self.drafts: list[int] = []
        self.table = BlockTable(encode_extras(lora=spec.lora, cache_salt=spec.cache_salt))
        self.edge = 0
        self.status = RequestStatus.WAITING
        self.is_prefilling = False
        self.is_aged = False
        self.arrival = 0
        self.queue_key: tuple[int, int, int] = (0, 0, 0)
        self.waiting_since = 0
        self.cached_tokens = 0
        self.num_preemptions = 0
        self.arrival_s = self.admitted_s = self.first_token_s = 0.0
