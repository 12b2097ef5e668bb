"""Which pod is meant, as values: what discovery sees of it, and the key under which everything is kept.

Names and addresses are used again by other pods, so nothing is ever kept under them: a key is the uid and the epoch of
the process. Where no uid is known (`--endpoints`), the address stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class PodKey(NamedTuple):
    """One process of one pod. `epoch` is what the pod drew at its start."""

    uid: str
    epoch: str


class GroupKey(NamedTuple):
    """Pods of one group give a prompt the same tokens and the same block hashes. Digests are SHA-256 in hex.

    `pool` is the EnginePool that they belong to, "" when there is none: its policy ranks them.
    """

    model: str
    tokenizer_fingerprint: str
    hash_root_digest: str
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """A pod as discovery sees it. `address` is host:port of its gRPC server.

    `pool` is the EnginePool that selects it and `model` what that one says its pods serve; "" when nothing is said.
    """

    uid: str
    name: str
    address: str
    is_ready: bool = True
    is_terminating: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    pool: str = ""
    model: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether discovery would have requests sent there."""
        return self.is_ready and not self.is_terminating
