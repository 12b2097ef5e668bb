"""From the times at which tokens came to the figures of a workload, and from repetitions to one row.

Standard library only, as `serve_workloads`. Knows no engine and no clock. A `Timeline` is owned by whoever follows the
request.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.cli.bench.serve_workloads import Ask

Row = dict[str, Any]


@dataclass(slots=True)
class Timeline:
    """One request as its caller saw it: seconds of one clock, `token_s` of each output token in order."""

    ask: Ask
    submit_s: float = 0.0
    token_s: list[float] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        """Between neighbouring tokens."""
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]


def quantile(values: Iterable[float], fraction: float) -> float | None:
    """With straight lines between the values; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(timelines: Sequence[Timeline], *, start_s: float, end_s: float) -> Row:
    """Of one repetition: times in milliseconds unless the key says s, rates in tokens a second.

    `prefill_tok_s` counts prompt tokens, cached ones too, until every request has its first token; `decode_tok_s` the
    tokens after that moment. `short_outputs` are requests that got another number of tokens than they asked for. With
    a late request there is also what it did to the others. Raises ValueError when a request got no token.
    """
    silent = [timeline.ask.name for timeline in timelines if not timeline.token_s]
    if silent:
        raise ValueError(f"no token came for {silent[0]}")
    gaps_s = [gap for timeline in timelines for gap in timeline.gaps_s]
    first_s = [timeline.token_s[0] - timeline.submit_s for timeline in timelines]
    num_prompt = sum(len(timeline.ask.prompt) for timeline in timelines)
    num_output = sum(len(timeline.token_s) for timeline in timelines)
    wall_s, all_begun_s = end_s - start_s, max(timeline.token_s[0] for timeline in timelines)
    row: Row = {
        "requests": len(timelines),
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "short_outputs": sum(len(timeline.token_s) != timeline.ask.num_output for timeline in timelines),
        "wall_s": round(wall_s, 4),
        "output_tok_s": round(num_output / wall_s, 2),
        "total_tok_s": round((num_output + num_prompt) / wall_s, 2),
        "prefill_tok_s": round(num_prompt / (all_begun_s - start_s), 2),
        "ttft_ms_p50": _ms(quantile(first_s, 0.5)),
        "ttft_ms_p99": _ms(quantile(first_s, 0.99)),
        "itl_ms_mean": _ms(statistics.fmean(gaps_s) if gaps_s else None),
        "itl_ms_p50": _ms(quantile(gaps_s, 0.5)),
        "itl_ms_p99": _ms(quantile(gaps_s, 0.99)),
        "itl_ms_max": _ms(max(gaps_s, default=None)),
    }
    decoded_s = [at for timeline in timelines for at in timeline.token_s if at > all_begun_s]
    if decoded_s:
        row["decode_tok_s"] = round(len(decoded_s) / (max(decoded_s) - all_begun_s), 2)
    return row | _late_figures(timelines)


def median_row(rows: Sequence[Row]) -> Row:
    """Key by key over repetitions. Of faults and of other programs' load the worst counts, not the middle."""
    merged: Row = {}
    for key in rows[0]:
        values = [row[key] for row in rows if row.get(key) is not None]
        choose = max if key in ("short_outputs", "cpu_others", "cpu_steal") else statistics.median
        merged[key] = round(choose(values), 4) if values else None
    return merged | {"reps": len(rows)}


def check_complete(row: Mapping[str, Any]) -> str:
    """What is wrong with a row's answers; "" when nothing is."""
    short = row["short_outputs"]
    return f"{short:.0f} requests got another number of tokens than they asked for" if short else ""


def _late_figures(timelines: Sequence[Timeline]) -> Row:
    """What the late request waited, and the others' gaps that its prefill touched. Empty without one."""
    late = [timeline for timeline in timelines if timeline.ask.is_late]
    if not late:
        return {}
    (long,) = late
    others = [timeline for timeline in timelines if not timeline.ask.is_late]
    begin_s, first_s = long.submit_s, long.token_s[0]
    during_s = _gaps_within(others, begin_s, first_s)
    before_s = _gaps_within(others, float("-inf"), begin_s, is_whole=True)
    return {
        "long_ttft_ms": _ms(first_s - begin_s),
        "long_prefill_tok_s": round(len(long.ask.prompt) / (first_s - begin_s), 2),
        "decoder_itl_during_ms_p50": _ms(quantile(during_s, 0.5)),
        "decoder_itl_during_ms_p99": _ms(quantile(during_s, 0.99)),
        "decoder_itl_during_ms_max": _ms(max(during_s, default=None)),
        "decoder_tokens_during": sum(begin_s < at <= first_s for timeline in others for at in timeline.token_s),
        "decoder_itl_before_ms_p50": _ms(quantile(before_s, 0.5)),
        "decoder_itl_before_ms_p99": _ms(quantile(before_s, 0.99)),
    }


def _gaps_within(timelines: Sequence[Timeline], begin_s: float, end_s: float, *, is_whole: bool = False) -> list[float]:
    """Gaps that overlap the time between; with `is_whole` only those that end by `end_s`."""
    return [
        later - earlier
        for timeline in timelines
        for earlier, later in zip(timeline.token_s, timeline.token_s[1:], strict=False)
        if (later <= end_s if is_whole else later > begin_s and earlier < end_s)
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
