"""The scene of three requests, with the built-in model, through gRPC: what `headstart demo` shows must be true."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest
from headstart.cli.demo import demo_settings, run_scene
from headstart.cli.demo.scene import NAMES, Outcome, check, computed_tokens, num_steps, shared_blocks
from headstart.cli.demo.show import print_outcome
from rich.console import Console


class _LogLines(logging.Handler):
    """Keeps everything that is logged, tracebacks too."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@pytest.fixture(scope="module")
def log_lines() -> Iterator[list[str]]:
    handler, root = _LogLines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture(scope="module")
def outcome(log_lines: list[str]) -> Outcome:
    return asyncio.run(run_scene(demo_settings()))


def test_keys_and_tls_of_the_users_own_pods_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_SERVER__AUTH__KEYS_DIR", "/keys")
    monkeypatch.setenv("HEADSTART_SERVER__TLS__CERT_FILE", "/certificate")
    server = demo_settings().server
    assert (server.auth.keys_dir, server.tls.cert_file) == ("", "")


def test_every_claim_of_the_demo_holds(outcome: Outcome) -> None:
    assert [claim for claim, holds in check(outcome) if not holds] == []


def test_what_was_cached_and_what_was_computed_sum_to_the_prompt(outcome: Outcome) -> None:
    for name in NAMES:
        answer = outcome.together[name]
        assert answer.cached_tokens + computed_tokens(name, outcome) == answer.prompt_tokens
        assert answer.prompt_tokens == len(outcome.prompts[name])


def test_the_prefix_is_several_blocks_and_held_by_all_three_at_once(outcome: Outcome) -> None:
    assert outcome.shared_tokens >= 10 * outcome.block_size
    shared_by_all = shared_blocks(outcome)[NAMES]
    assert len(shared_by_all) == outcome.shared_tokens // outcome.block_size


def test_no_step_exceeds_the_budget_and_decodes_come_first(outcome: Outcome) -> None:
    for trace in outcome.traces:
        assert sum(row.num_tokens for row in trace.rows) <= outcome.budget
        assert [row.is_decode for row in trace.rows] == sorted((row.is_decode for row in trace.rows), reverse=True)


def test_a_and_b_never_wait_for_the_passage_of_c(outcome: Outcome) -> None:
    """Every step that computes a chunk of C decodes A and B too, as long as they still run."""
    last_step = {
        name: max(t.step for t in outcome.traces if any(r.request_id == name for r in t.rows)) for name in NAMES
    }
    for trace in outcome.traces:
        names = {row.request_id for row in trace.rows}
        if any(row.request_id == "C" and not row.is_decode for row in trace.rows):
            assert names >= {name for name in ("A", "B") if trace.step <= last_step[name]}
    assert num_steps("C", outcome) >= 4


def test_eviction_takes_tails_before_heads(outcome: Outcome) -> None:
    pressure = outcome.pressure
    assert all(pressure.after[name] <= pressure.before[name] for name in NAMES)
    assert pressure.after != pressure.before


def test_no_log_line_holds_words_of_a_prompt_or_an_answer(outcome: Outcome, log_lines: list[str]) -> None:
    """B158, at the finest level of logging."""
    logged = "\n".join(log_lines)
    assert "serving smollm2-135m-instruct" in logged
    for canary in ("travel desk", "bicycle", *(outcome.together[name].text[:24] for name in NAMES)):
        assert canary not in logged
    assert str(outcome.prompts["A"][40]) + ", " + str(outcome.prompts["A"][41]) not in logged


def test_the_demo_prints_plain_text_in_a_pipe(outcome: Outcome) -> None:
    written = io.StringIO()
    assert print_outcome(Console(file=written, width=140), outcome)
    text = written.getvalue()
    assert "\x1b" not in text
    assert f"C[{outcome.shared_tokens}.." in text
    assert "Shared by A, B and C" in text
    assert "all but its last token count as cached" in " ".join(text.split())
    assert "✗" not in text
