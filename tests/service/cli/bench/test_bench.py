"""`headstart bench`: what programs read of it, and what a wrong word or file is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headstart.cli import main
from headstart.cli.bench.output import Bars, chart
from headstart.cli.bench.scheduler import bytes_per_block

POLICIES = {"prefix", "least-loaded", "round-robin"}


def _result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, dict[str, float]]]:
    assert main(["bench", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "┃" in printed
    return dict(json.loads(printed.splitlines()[-1]))


def _trace(folder: Path, *prompts: list[int]) -> str:
    path = folder / "trace.jsonl"
    lines = [json.dumps({"timestamp": 500 * number, "hash_ids": ids}) for number, ids in enumerate(prompts)]
    path.write_text("\n".join(lines))
    return str(path)


def test_the_schedulers_last_line_holds_its_cost_at_three_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    result = _result(capsys, "scheduler", "--quick")
    assert list(result) == ["us_per_request_step"]
    assert list(result["us_per_request_step"]) == ["32", "128", "256"]
    assert all(cost > 0 for cost in result["us_per_request_step"].values())


def test_the_memory_of_a_block_includes_its_hash_and_keeps_its_bound() -> None:
    # The hash, its entry in the map, the block's number, and a word in four lists of the pool and two of a table.
    least = 65 + 3 * 8 + 28 + 6 * 8
    assert least < bytes_per_block(10_000) <= 260


def test_the_routing_line_compares_all_policies_with_the_static_partition(capsys: pytest.CaptureFixture[str]) -> None:
    result = _result(capsys, "route", "--quick", "--seeds", "9")
    assert set(result) == POLICIES | {"static"}
    assert all(set(figures) == {"hit_ratio", "p95_s", "failed"} for figures in result.values())
    assert all(figures["failed"] == 0 for figures in result.values())
    assert result["prefix"]["hit_ratio"] > 2 * result["round-robin"]["hit_ratio"]


def test_the_trace_line_compares_each_fleet_with_one_big_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    talk, other = [0, 1, 2, 3], [0, 7, 8, 9]
    trace = _trace(tmp_path, talk, other, [*talk, 4], [*other, 10], [*talk, 4, 5])
    result = _result(capsys, "trace", trace, "--fleets", "2x50,3x9")
    assert set(result) == POLICIES
    for figures in result.values():
        assert list(figures) == ["2x50", "3x9"]
        assert set(figures["2x50"]) == {"hit_ratio", "ideal_hit_ratio", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"}
    # By hand: of 4 + 4 + 5 + 5 + 6 blocks, 0 + 1 + 4 + 4 + 5 were there before.
    assert result["prefix"]["2x50"]["ideal_hit_ratio"] == round(14 / 24, 6)
    assert 13 / 24 - 0.001 <= result["prefix"]["2x50"]["hit_ratio"] <= 14 / 24 + 0.001


def test_a_trace_is_drawn_as_a_bar_for_each_fleet_and_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "trace", _trace(tmp_path, [0, 1, 2, 3], [0, 1, 2, 3]), "--fleets", "2x50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    drawn = lines[lines.index("2x50") + 1 :]
    assert [line.split()[0] for line in drawn[:3]] == ["prefix", "least-loaded", "round-robin"]
    # Of one cache's 3 of 8 blocks the second request finds all, or is sent to the pod that holds none.
    assert drawn[0].split()[1:] == ["█" * 50, "1.000"]
    assert drawn[2].split()[1:] == ["0.000"]


def test_a_bar_is_as_long_as_its_share_of_the_longest_or_of_one() -> None:
    lines = chart(Bars("title", {"a": {"half": 0.5, "bit": 0.0025}, "b": {"all": 1.25}}))
    first = _bars(("half", 20, "", 0.5), ("bit ", 0, "▏", 0.0025))
    assert lines == ["", "title", "", "a", *first, "", "b", *_bars(("all ", 50, "", 1.25)), ""]


def _bars(*bars: tuple[str, int, str, float]) -> list[str]:
    return [f"  {name}  {'█' * length + end:<50}  {share:.3f}" for name, length, end, share in bars]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["schedule"], "did you mean scheduler?"),
        (["route", "--seeds", "1,x"], "--seeds"),
        (["route", "--seeds", ""], "--seeds"),
        (["trace", "FILE", "--fleets", "8x"], "--fleets"),
        (["trace", "FILE", "--share", "0"], "--share"),
        (["trace", "FILE", "--shufle"], "did you mean --shuffle?"),
    ],
)
def test_a_wrong_word_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no request in it"),
        ('{"timestamp": 0, "hash_ids": [1]}\n{"timestamp": 1}', ":2: not an object with timestamp and hash_ids"),
        ("[1]", ":1: not an object"),
        ('{"timestamp": "soon", "hash_ids": [1]}', ":1: not an object"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    assert main(["bench", "trace", str(path)]) == 2
    assert named in capsys.readouterr().err


def test_a_missing_trace_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
