"""The comparison with other engines: what it makes of rows, and that an engine's process answers it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # as when one of the scripts is run

import compare_peers as peers  # noqa: E402
import compare_serving  # noqa: E402
import peer_llamacpp  # noqa: E402
from peer_rows import Worker  # noqa: E402

DECODE = peers.FIGURES[0]


def _rows(**values: list[float]) -> peers.Rows:
    return {name: {"W1": [{"decode_tok_s": value} for value in each]} for name, each in values.items()}


def test_a_ratio_is_taken_within_each_repetition() -> None:
    # Of the medians it would be 2.0; the machine was three times as fast in the last repetition.
    rows = _rows(headstart=[10.0, 20.0, 60.0]) | {peers.VLLM: _rows(x=[10.0, 10.0, 20.0])["x"]}
    assert peers.ratios_of(DECODE, rows) == {"headstart / vllm": {"median": 2.0, "least": 1.0, "most": 3.0}}


def test_llamacpp_is_compared_with_at_the_same_width_of_weights_only() -> None:
    one = _rows(x=[10.0])["x"]
    rows = dict.fromkeys((peers.OURS, peers.OURS_QUANTIZED, peers.LLAMACPP, peers.LLAMACPP_Q4_1), one)
    assert set(peers.ratios_of(DECODE, rows)) == {
        "headstart / llama.cpp bf16",
        "headstart quantized / llama.cpp q4_1",
    }


def test_an_engine_that_was_not_measured_is_in_no_ratio_and_a_dash_in_the_table() -> None:
    assert peers.ratios_of(DECODE, _rows(headstart=[10.0])) == {}
    medians: dict[str, Any] = {"headstart": {"W1": {"decode_tok_s": 10.0}}, "vllm": {}}
    assert peers.table_row(DECODE, medians) == ("W1 decode tok/s", "10", "-")


def test_rows_that_others_disturbed_are_named() -> None:
    rows = {"headstart": {"W1": [{"cpu_others": 0.0}, {"cpu_others": 0.7}], "W2": [{"cpu_others": 0.1}]}}
    assert peers.disturbed_lines(rows) == ["disturbed: headstart W1, others took up to 0.70 cores"]


def test_engines_take_turns_and_another_begins_each_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "QUIET_S", 0.0)
    order: list[tuple[str, str]] = []

    def engine(name: str, *workloads: str) -> peers.Engine:
        def measure(workload: str, seed: str) -> dict[str, Any]:
            order.append((workload, name))
            return {"seed": seed}

        return peers.Engine(frozenset(workloads), measure)

    engines = {"a": engine("a", "W1", "W5"), "b": engine("b", "W1")}
    rows, read_gb_per_s = peers.measure_in_turn(engines, ["W1", "W5"], 2)
    assert order == [("W1", "a"), ("W1", "b"), ("W5", "a"), ("W1", "b"), ("W1", "a"), ("W5", "a")]
    seeds = [row["seed"] for row in rows["a"]["W1"]]
    assert len(set(seeds)) == 2
    assert len(read_gb_per_s) == 2


def test_serving_loses_the_share_of_tokens_that_is_gone() -> None:
    alone = [{"output_tok_s": 100.0}, {"output_tok_s": 50.0}, {"output_tok_s": 80.0}]
    through = [{"output_tok_s": 90.0}, {"output_tok_s": 49.0}, {"output_tok_s": 80.0}]
    assert compare_serving.loss(alone, through) == 0.02


def test_ports_are_read_from_what_serve_says_when_it_is_ready() -> None:
    line = "headstart: ready, gRPC on port 5, health on 6, HTTP on 7, metrics on 8"
    found = compare_serving.READY.search(line)
    assert found is not None
    assert found.groups() == ("5", "7")


def test_llamacpps_line_comes_under_the_workloads_keys() -> None:
    line = json.dumps({"speed_pp": 1000.5, "speed_tg": 120.25, "t": 2.5, "t_pp": 0.032})
    assert peer_llamacpp.read_row(f"noise\n{line}\n") == {
        "prefill_tok_s": 1000.5,
        "decode_tok_s": 120.25,
        "wall_s": 2.5,
        "ttft_ms_p50": 32.0,
    }


def test_an_engines_process_stays_and_answers_row_after_row() -> None:
    variables = {"HEADSTART_RUNNER__STEP_SECONDS": "0", "HEADSTART_RUNNER__TOKEN_SECONDS": "0"}
    command = [sys.executable, str(HERE / "peer_headstart.py"), "--runner", "simulated"]
    with closing(Worker(command, dict(os.environ) | variables)) as worker:
        assert worker.first == {"engine": "headstart"}
        rows = [worker.measure(workload, "1") for workload in ("W2", "W4w", "W2")]
    assert [row["output_tokens"] for row in rows] == [2048, 512, 2048]


def test_a_process_that_ends_is_an_error_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match="no such workload word"):
        Worker([sys.executable, "-c", "print('no such workload word')"], dict(os.environ))
