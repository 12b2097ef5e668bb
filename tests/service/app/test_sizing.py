"""How large the KV pool gets and how long a request may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from headstart.app.model import open_model
from headstart.app.sizing import (
    MAX_DEFAULT_BYTES,
    available_memory,
    check_bookkeeping,
    count_blocks,
    fit_max_len,
    step_bytes,
)
from headstart.config import load_settings
from headstart.errors import ConfigError
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import open_checkpoint

BLOCK_BYTES = 368_640  # SmolLM2-135M in bfloat16, 16 tokens


def _blocks(
    num_blocks: int | None = None,
    memory_bytes: int | None = None,
    memory_fraction: float | None = None,
    available_bytes: int = 1 << 40,
) -> int:
    return count_blocks(
        num_blocks=num_blocks,
        memory_bytes=memory_bytes,
        memory_fraction=memory_fraction,
        available_bytes=available_bytes,
        block_bytes=BLOCK_BYTES,
    )


def test_an_exact_number_of_blocks_wins() -> None:
    assert _blocks(num_blocks=7, memory_bytes=1 << 30, memory_fraction=0.5) == 7


def test_100_mib_hold_284_blocks() -> None:
    """B053."""
    assert _blocks(memory_bytes=100 << 20) == 284


def test_a_share_of_the_memory_is_taken_as_asked() -> None:
    assert _blocks(memory_fraction=0.25, available_bytes=400 << 20) == 284
    assert _blocks(memory_fraction=0.5, available_bytes=1 << 40) == (1 << 39) // BLOCK_BYTES


def test_without_a_wish_a_large_machine_is_not_filled() -> None:
    assert _blocks() == MAX_DEFAULT_BYTES // BLOCK_BYTES


def test_memory_for_less_than_one_block_is_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match=r"cache\.memory_bytes: 1000 bytes hold no KV block; one takes 368640"):
        _blocks(memory_bytes=1000)
    with pytest.raises(ConfigError, match=r"cache\.memory_fraction"):
        _blocks(available_bytes=1000)


def test_a_pool_that_the_machine_cannot_hold_is_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match=r"^cache\.num_blocks: .* 343\.3 GiB, and weights and steps leave 16\.0 GiB$"):
        _blocks(num_blocks=1_000_000, available_bytes=16 << 30)
    with pytest.raises(ConfigError, match=r"^cache\.memory_bytes: .* take 32\.0 GiB"):
        _blocks(memory_bytes=32 << 30, available_bytes=16 << 30)
    assert _blocks(num_blocks=7, available_bytes=7 * BLOCK_BYTES) == 7


def test_a_step_may_need_all_logits_and_twice_its_rows_between_the_layers() -> None:
    config = open_checkpoint(resolve_source(BUILT_IN)).config
    between = 576 + 576 + 1536 + 2 * 1536
    assert step_bytes(config, 10) == 10 * 4 * (2 * between + 49_152)


def test_a_pool_without_storage_is_bounded_by_the_account_of_it() -> None:
    check_bookkeeping(1_000_000, available_bytes=1 << 30)
    with pytest.raises(ConfigError, match=r"^cache\.num_blocks: .* 1000000000000 blocks would take 232830\.6 GiB"):
        check_bookkeeping(10**12, available_bytes=1 << 30)
    with pytest.raises(ConfigError, match=r"^cache\.num_blocks: "):
        open_model(load_settings({"runner.kind": "simulated", "cache.num_blocks": 10**12}), lambda *_: None)


def _fit(wanted: int | None, num_blocks: int) -> int:
    return fit_max_len(wanted=wanted, model_len=8192, num_blocks=num_blocks, block_size=16)


def test_a_request_is_as_long_as_the_model_allows_or_as_the_pool_holds() -> None:
    assert _fit(None, 10_000) == 8192
    assert _fit(None, 48) == 768


def test_a_wish_that_does_not_fit_names_the_largest_that_does() -> None:
    """B053: too small for the length is an error at the start that prints the largest length that fits."""
    assert _fit(768, 48) == 768
    with pytest.raises(ConfigError, match="the largest that fits is 768"):
        _fit(769, 48)
    with pytest.raises(ConfigError, match="more than the model's context of 8192"):
        _fit(8193, 10_000)


def test_a_pool_of_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than 2 tokens"):
        fit_max_len(wanted=None, model_len=8192, num_blocks=1, block_size=1)


V2 = {"limit": "memory.max", "usage": "memory.current", "stat": "memory.stat"}
V1 = {
    "limit": "memory/memory.limit_in_bytes",
    "usage": "memory/memory.usage_in_bytes",
    "stat": "memory/memory.stat",
}


@pytest.mark.parametrize(
    ("files", "unlimited", "reclaimable"),
    [(V2, "max", "inactive_file"), (V1, "9223372036854771712", "total_inactive_file")],
    ids=["cgroup v2", "cgroup v1"],
)
def test_available_memory_heeds_the_limit_of_the_container(
    tmp_path: Path, files: dict[str, str], unlimited: str, reclaimable: str
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:  50 kB\n")
    (tmp_path / "memory").mkdir()
    assert available_memory(meminfo=meminfo, cgroup=tmp_path) == 50 * 1024

    def available(limit: str) -> int:
        (tmp_path / files["limit"]).write_text(f"{limit}\n")
        return available_memory(meminfo=meminfo, cgroup=tmp_path)

    (tmp_path / files["usage"]).write_text("10000\n")
    (tmp_path / files["stat"]).write_text("active_file 5\ninactive_file 0\ntotal_inactive_file 0\n")
    assert available(unlimited) == 50 * 1024
    assert available("30000") == 20_000
    assert available("9999") == 0
    (tmp_path / files["stat"]).write_text(f"active_file 5\n{reclaimable} 4000\n")
    assert available("30000") == 24_000
