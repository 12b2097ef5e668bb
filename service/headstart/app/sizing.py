"""How many KV blocks a pod gets and how long a request may be: arithmetic on numbers, no settings, no device.

Holds no state. Errors name the setting to change.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headstart.errors import ConfigError
from headstart.model.config import ModelConfig

DEFAULT_MEMORY_FRACTION = 0.9
# Without a wish a pod takes no more than this, however much memory the machine has.
MAX_DEFAULT_BYTES = 4 << 30
# What the pool knows of a block, in Python's objects: hash, references, place in the order of eviction.
_BOOKKEEPING_BYTES = 250
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class _Cgroup(NamedTuple):
    """Files of a cgroup version, and the line of `stat` that is not lost memory."""

    limit: str
    usage: str
    stat: str
    reclaimable: str


_V2 = _Cgroup("memory.max", "memory.current", "memory.stat", "inactive_file")
_V1 = _Cgroup(
    "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"
)


def count_blocks(
    *,
    num_blocks: int | None,
    memory_bytes: int | None,
    memory_fraction: float | None,
    available_bytes: int,
    block_bytes: int,
) -> int:
    """Usable KV blocks: the exact number when set, else what fits the bytes, else what fits a share of the memory.

    `block_bytes` is what one block takes over all layers. Raises ConfigError when not even one fits, or when more is
    wanted than there is: the system would kill a pod that already serves.
    """
    if num_blocks is not None:
        _check_room("cache.num_blocks", num_blocks * block_bytes, available_bytes)
        return num_blocks
    key, wanted_bytes = "cache.memory_bytes", memory_bytes
    if wanted_bytes is None:
        key = "cache.memory_fraction"
        wanted_bytes = int((memory_fraction or DEFAULT_MEMORY_FRACTION) * available_bytes)
        if memory_fraction is None:
            wanted_bytes = min(wanted_bytes, MAX_DEFAULT_BYTES)
    if wanted_bytes < block_bytes:
        raise ConfigError(f"{key}: {wanted_bytes} bytes hold no KV block; one takes {block_bytes} bytes")
    _check_room(key, wanted_bytes, available_bytes)
    return wanted_bytes // block_bytes


def step_bytes(config: ModelConfig, max_tokens: int) -> int:
    """The most that a step of so many tokens takes beside weights and K/V: float32 rows between the layers, of which
    there may be room for twice as many, and logits of every token where a prompt's logprobs are asked for."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    row = 2 * hidden + max(hidden, q, inner) + max(q + 2 * kv, 2 * inner)
    return 4 * max_tokens * (2 * row + config.vocab_size)


def check_bookkeeping(num_blocks: int, *, available_bytes: int) -> None:
    """For blocks without storage. Raises ConfigError when the account of so many would fill the memory."""
    wanted_bytes = num_blocks * _BOOKKEEPING_BYTES
    if wanted_bytes > available_bytes:
        wanted, available = wanted_bytes / 2**30, available_bytes / 2**30
        raise ConfigError(
            f"cache.num_blocks: to keep account of {num_blocks} blocks would take {wanted:.1f} GiB and there are "
            f"{available:.1f} GiB"
        )


def _check_room(key: str, wanted_bytes: int, available_bytes: int) -> None:
    if wanted_bytes > available_bytes:
        wanted, available = wanted_bytes / 2**30, available_bytes / 2**30
        raise ConfigError(
            f"{key}: the KV pool would take {wanted:.1f} GiB, and weights and steps leave {available:.1f} GiB"
        )


def fit_max_len(*, wanted: int | None, model_len: int, num_blocks: int, block_size: int) -> int:
    """Most tokens of one request: what was asked for, else the model's, but never more than the pool holds.

    Raises ConfigError when the wish is longer than the model's context or than the pool.
    """
    pool_len = num_blocks * block_size
    if wanted is None:
        if pool_len < 2:
            raise ConfigError("cache.num_blocks: the pool holds less than 2 tokens; give it more blocks")
        return min(model_len, pool_len)
    if wanted > model_len:
        raise ConfigError(f"model.max_len: {wanted} is more than the model's context of {model_len}")
    if wanted > pool_len:
        raise ConfigError(
            f"model.max_len: a request of {wanted} tokens does not fit {num_blocks} blocks of {block_size}; the "
            f"largest that fits is {pool_len}. Lower model.max_len or raise cache.num_blocks or cache.memory_bytes"
        )
    return wanted


def available_memory(*, meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may still take: the machine's available memory, or less when its cgroup has a limit."""
    machine_bytes = 1024 * int(_fields(meminfo)["MemAvailable:"])
    for version in (_V2, _V1):
        try:
            limit = (cgroup / version.limit).read_text().strip()
            used = int((cgroup / version.usage).read_text())
            # What the system has read of files counts as used, and goes when there is need.
            reclaimable = int(_fields(cgroup / version.stat).get(version.reclaimable, 0))
        except (OSError, ValueError):
            continue
        if limit != "max":
            return max(0, min(machine_bytes, int(limit) - used + reclaimable))
    return machine_bytes


def _fields(path: Path) -> dict[str, str]:
    """First and second word of each line."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}
