"""From the times of tokens to the figures: every number here is worked out by hand."""

from __future__ import annotations

import pytest
from headstart.cli.bench.serve_metrics import Timeline, check_complete, median_row, quantile, summarize
from headstart.cli.bench.serve_workloads import Ask


def _timeline(
    name: str, submit_s: float, token_s: list[float], *, num_prompt: int = 10, late: bool = False
) -> Timeline:
    return Timeline(Ask(name, [0] * num_prompt, len(token_s), late), submit_s, token_s)


def test_quantiles_lie_on_straight_lines_between_the_values() -> None:
    assert [quantile([4.0, 1.0, 2.0], fraction) for fraction in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 4.0]
    assert quantile([], 0.5) is None


def test_rates_and_times_of_two_requests() -> None:
    timelines = [_timeline("a", 0.0, [1.0, 2.0, 4.0]), _timeline("b", 0.5, [2.0, 3.0], num_prompt=30)]
    row = summarize(timelines, start_s=0.0, end_s=5.0)
    assert row == {
        "requests": 2,
        "prompt_tokens": 40,
        "output_tokens": 5,
        "short_outputs": 0,
        "wall_s": 5.0,
        "output_tok_s": 1.0,
        "total_tok_s": 9.0,
        "prefill_tok_s": 20.0,  # 40 prompt tokens until 2.0, when the last request has its first token
        "ttft_ms_p50": 1250.0,
        "ttft_ms_p99": 1495.0,
        "itl_ms_mean": 1333.333,
        "itl_ms_p50": 1000.0,
        "itl_ms_p99": 1980.0,
        "itl_ms_max": 2000.0,
        "decode_tok_s": 1.0,  # the tokens at 3.0 and 4.0, in the 2 s after 2.0
    }


def test_requests_of_one_token_have_no_gaps_and_no_decode_rate() -> None:
    row = summarize([_timeline("a", 0.0, [1.0]), _timeline("b", 0.0, [2.0])], start_s=0.0, end_s=2.0)
    assert row["itl_ms_p50"] is None
    assert "decode_tok_s" not in row


def test_tokens_that_come_together_have_no_gap_between_them() -> None:
    row = summarize([_timeline("a", 0.0, [1.0, 1.0, 3.0])], start_s=0.0, end_s=3.0)
    assert (row["itl_ms_mean"], row["itl_ms_max"]) == (1000.0, 2000.0)


def test_the_late_request_tells_what_it_waited_and_what_the_others_gaps_were() -> None:
    decoder = _timeline("a", 0.0, [1.0, 2.0, 5.0, 7.5, 8.0])
    row = summarize([decoder, _timeline("long", 3.0, [6.0], num_prompt=60, late=True)], start_s=0.0, end_s=8.0)
    assert (row["long_ttft_ms"], row["long_prefill_tok_s"]) == (3000.0, 20.0)
    # The gaps 2..5 and 5..7.5 overlap the prefill 3..6; 1..2 ended before it, 7.5..8 began after it.
    assert (row["decoder_itl_during_ms_p50"], row["decoder_itl_during_ms_max"]) == (2750.0, 3000.0)
    assert row["decoder_itl_during_ms_p99"] == 2995.0
    assert (row["decoder_itl_before_ms_p50"], row["decoder_itl_before_ms_p99"]) == (1000.0, 1000.0)
    assert row["decoder_tokens_during"] == 1


def test_a_request_without_a_token_is_named() -> None:
    with pytest.raises(ValueError, match="no token came for b"):
        summarize([_timeline("a", 0.0, [1.0]), _timeline("b", 0.0, [])], start_s=0.0, end_s=1.0)


def test_of_repetitions_the_middle_counts_but_of_faults_and_others_load_the_worst() -> None:
    rows = [
        {"wall_s": wall_s, "short_outputs": short, "cpu_others": others, "itl_ms_p50": None}
        for wall_s, short, others in [(3.0, 0, 0.5), (1.0, 2, 0.0), (2.0, 0, 0.1)]
    ]
    merged = median_row(rows)
    assert merged == {"wall_s": 2.0, "short_outputs": 2, "cpu_others": 0.5, "itl_ms_p50": None, "reps": 3}
    assert check_complete(merged).startswith("2 requests got another number of tokens")
    assert check_complete({"short_outputs": 0}) == ""
