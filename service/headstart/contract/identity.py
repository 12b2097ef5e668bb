"""Who a pod is: what it says of itself in `hello` and in `GetModel`. Built once at start-up, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """A pod's model and shape. Fingerprints and digests are SHA-256 in hex.

    `epoch` is random per process: a sequence number means nothing without it. `numerics_id` names dtype, instruction
    set and attention backend; pods of equal ids give bit-identical text. `features` is what is in effect, by name;
    `hash_root_fields` is what the hash root covers besides the fleet secret.
    """

    epoch: str
    pod_name: str
    pod_uid: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    hash_root_digest: str
    numerics_id: str
    block_size: int
    capacity_blocks: int
    max_num_seqs: int
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    hash_root_fields: Mapping[str, str] = field(default_factory=dict)
