"""The identity of a cached block, and how much of a prompt a chain of them covers.

Pod and operator both call these functions, so a predicted hit and an actual one mean the same thing. Nothing here knows
where blocks live or who holds them.

    root = SHA-256(tagged fields of everything that changes K/V, and the fleet secret)
    H_i  = SHA-256(H_{i-1} || extras || the block's tokens as little-endian uint32),   H_{-1} = root

Extras are tagged and length-prefixed, so no two sets of them encode alike, and the tokens of a block have one fixed
length, so the whole message decodes in one way only. A digest is 256 bits: token ids are not compared on a hit.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256

DIGEST_BYTES = 32
_TAG_LORA = b"L"
_TAG_SALT = b"S"


def hash_root(fields: Mapping[str, str], fleet_secret: bytes = b"") -> bytes:
    """The parent of every first block: 32 bytes.

    `fields` names all that changes K/V or the tokens: model fingerprint, dtype, KV dtype, rope, tokenizer fingerprint,
    block size. Their order does not matter. Pods share prefixes only under one root.
    """
    digest = sha256(b"headstart/root/1\0")
    for name in sorted(fields):
        digest.update(_prefixed(name.encode()))
        digest.update(_prefixed(fields[name].encode()))
    digest.update(_prefixed(fleet_secret))
    return digest.digest()


def encode_extras(*, lora: str = "", lora_digest: str = "", cache_salt: str = "") -> bytes:
    """What separates equal tokens: the adapter, by name and content, and the tenant's salt. Empty without both."""
    extras = b""
    if lora or lora_digest:
        extras += _TAG_LORA + _prefixed(lora.encode()) + _prefixed(lora_digest.encode())
    if cache_salt:
        extras += _TAG_SALT + _prefixed(cache_salt.encode())
    return extras


def tenant_salt(tenant: str, cache_salt: str) -> str:
    """The salt in effect of a tenant's request: 64 hex digits that no other pair of tenant and own salt gives.

    Both parts are length-prefixed and hashed, so no tenant can write a salt that becomes another's.
    """
    parts = _prefixed(tenant.encode()) + _prefixed(cache_salt.encode())
    return sha256(b"headstart/tenant/1\0" + parts).hexdigest()


def block_hashes(parent: bytes, token_ids: Sequence[int], block_size: int, extras: bytes = b"") -> list[bytes]:
    """Chain hashes of the full blocks of `token_ids`; a partly filled last block has none.

    `parent` is the hash of the block before them, or the root. An `array("I")` of ids is not copied. Raises
    OverflowError for an id that is negative or above 32 bits.
    """
    num_blocks = len(token_ids) // block_size
    if num_blocks == 0:
        return []
    if isinstance(token_ids, array) and token_ids.typecode == "I":
        packed = token_ids
    else:
        packed = array("I", token_ids[: num_blocks * block_size])
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    block_bytes = 4 * block_size
    blocks = struct.iter_unpack(f"{block_bytes}s", memoryview(packed).cast("B")[: num_blocks * block_bytes])
    if extras:
        return [parent := sha256(parent + extras + tokens).digest() for (tokens,) in blocks]
    return [parent := sha256(parent + tokens).digest() for (tokens,) in blocks]


def hit_length(num_cached_blocks: int, num_tokens: int, block_size: int) -> int:
    """Tokens that need no forward pass when the first `num_cached_blocks` full blocks of `num_tokens` are cached.

    At least one token is always computed, because its logits are wanted: at most `num_tokens - 1`.
    """
    return max(0, min(num_cached_blocks * block_size, num_tokens - 1))


def reads_cache(prompt_logprobs: int | None) -> bool:
    """Whether a request may skip positions: not when it wants the logprobs of every prompt token."""
    return prompt_logprobs is None


def wire_hash(digest: bytes) -> int:
    """The 64 bits of a chain hash that travel in events: its first 8 bytes, big-endian."""
    return int.from_bytes(digest[:8], "big")


def wire_hashes(digests: Sequence[bytes]) -> list[int]:
    """`wire_hash` of each, in a fraction of the time."""
    return joined_wire_hashes(b"".join(digests))


def joined_wire_hashes(digests: bytes) -> list[int]:
    """`wire_hash` of each of so many digests, one behind the other."""
    return list(struct.unpack(">" + "Q24x" * (len(digests) // DIGEST_BYTES), digests))


def _prefixed(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value
