"""`headstart bench kernels`: what it measures, and what a share means."""

from __future__ import annotations

import json

import numpy as np
import pytest
from headstart.cli import main
from headstart.cli.bench.kernels_attention import WORKS, Work, lay_out, measure_attention, num_keys
from headstart.cli.bench.kernels_limits import Figure, Limits, Machine, better, floor_s, is_bound_by_reading, share
from headstart_kernels import _native

LIMITS = Limits(read_bytes_per_s=100.0, ops_per_s=1000.0, float_ops_per_s=500.0)


def test_the_last_line_holds_each_kernels_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--quick", "--weights", "bf16,q4_1"]) == 0
    shares = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(shares) == [
        *(
            f"gemm {kind} {part} x{rows}"
            for kind in ("bf16", "q4_1")
            for rows in (1, 16)
            for part in ("layers", "head")
        ),
        "attention decode 1 on 299",
        "attention decode 16 on 199",
        "decoder bfloat16 decode 1 on 256",
    ]
    assert all(0.0 < value < 2.0 for value in shares.values())


def test_one_group_can_be_measured_alone_on_a_chosen_instruction_set(capsys: pytest.CaptureFixture[str]) -> None:
    isa = _native.available_isas()[0]
    assert main(["bench", "kernels", "--quick", "--only", "attention", "--isa", isa, "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"{isa}, 1 threads" in printed
    assert set(json.loads(printed.splitlines()[-1])) == {f"attention {work.name}" for work in WORKS[:2]}


def test_the_longer_of_reading_and_computing_is_the_floor() -> None:
    reading = Figure("a", seconds=4.0, num_bytes=200, num_ops=1000)
    computing = Figure("b", seconds=4.0, num_bytes=50, num_ops=3000)
    assert [floor_s(figure, LIMITS) for figure in (reading, computing)] == [2.0, 3.0]
    assert [share(figure, LIMITS) for figure in (reading, computing)] == [0.5, 0.75]
    assert [is_bound_by_reading(figure, LIMITS) for figure in (reading, computing)] == [True, False]
    assert floor_s(computing._replace(is_float32=True), LIMITS) == 6.0


def test_the_better_of_two_measurements_is_the_limit() -> None:
    assert better(LIMITS, Limits(50.0, 2000.0, 500.0)) == Limits(100.0, 2000.0, 500.0)


def test_work_is_counted_in_pages_and_keys_once() -> None:
    work = Work("two rows", rows=2, start=40, tokens=3, shared=32)
    metadata, num_pages = lay_out(work)
    # The empty page, two shared ones, and one of 11 tokens for each row.
    assert num_pages == 1 + 2 + 2
    assert metadata.kv_indices.tolist() == [1, 2, 3, 1, 2, 4]
    assert num_keys(work) == 2 * (41 + 42 + 43)


def test_who_reads_the_shared_pages_changes_no_bit() -> None:
    machine = Machine(_native.ThreadPool(2), _native.active_isa())
    work = Work("", rows=3, start=70, tokens=1, shared=64)
    outputs = [
        measure_attention(machine, work._replace(shares_prefixes=shares), repetitions=1, num_layers=1)[1]
        for shares in (True, False)
    ]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "gem"], "--only: 'gem' is not one of gemm"),
        (["--weights", "bf17"], "--weights: 'bf17' is not one of"),
    ],
)
def test_a_wrong_word_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "kernels", *arguments])
    assert words in capsys.readouterr().err


def test_an_instruction_set_that_is_not_here_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--isa", "neon"]) == 2
    assert "--isa: 'neon' is not here; there are scalar" in capsys.readouterr().err
