"""`headstart bench serve`: the same figures from an engine in the process, over gRPC and over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from headstart.app.pod import Pod, start_pod
from headstart.cli import main
from headstart.cli.bench.serve import token_ids_for
from headstart.cli.bench.serve_drive import ModelLimits
from headstart.cli.bench.serve_remote import count_tokens
from headstart.cli.bench.serve_workloads import WORKLOADS
from headstart.config import load_settings
from headstart.errors import ConfigError, UnavailableError
from headstart.model.weights import no_progress

SIMULATED = {
    "runner.kind": "simulated",
    "runner.step_seconds": 0,
    "runner.token_seconds": 0,
    "cache.num_blocks": 600,
    "server.host": "127.0.0.1",
    "server.grpc_port": 0,
    "server.health_port": 0,
    "server.http_port": 0,
    "server.metrics_port": 0,
}
KEYS = {"requests", "wall_s", "output_tok_s", "prefill_tok_s", "ttft_ms_p50", "itl_ms_p99", "cpu_others", "reps"}


class RunningPod:
    """A simulated pod on an event loop of its own, so that the command can have its own."""

    def __init__(self) -> None:
        self.pod: Pod
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Pod:
        self._thread.start()
        starting = start_pod(load_settings(SIMULATED), progress=no_progress)
        self.pod = asyncio.run_coroutine_threadsafe(starting, self._loop).result(60)
        return self.pod

    def __exit__(self, *unused: object) -> None:
        asyncio.run_coroutine_threadsafe(self.pod.stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with RunningPod() as pod:
        yield pod


def _result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert main(["bench", "serve", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "┃" in printed
    return dict(json.loads(printed.splitlines()[-1]))


def test_an_engine_in_the_process_plays_all_workloads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_RUNNER__STEP_SECONDS", "0.001")  # so that tokens come one after the other
    monkeypatch.setenv("HEADSTART_RUNNER__TOKEN_SECONDS", "0")
    result = _result(capsys, "--runner", "simulated", "--reps", "1", "--num-gpu-blocks-override", "2400")
    assert set(result) == {"startup", *WORKLOADS}
    assert result["startup"]["process_to_first_token_s"] > 0
    for name in WORKLOADS:
        assert set(result[name]) >= KEYS
        assert result[name]["short_outputs"] == 0
    assert result["W1"]["decode_tok_s"] > 0
    assert result["W5"].keys() >= {"long_ttft_ms", "decoder_itl_during_ms_p99", "decoder_itl_before_ms_p50"}


def test_the_built_in_model_in_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    result = _result(capsys, "--workloads", "W1", "--reps", "1", "--num-gpu-blocks-override", "100", "--device", "cpu")
    assert set(result) == {"startup", "W1"}
    assert (result["W1"]["output_tokens"], result["W1"]["short_outputs"]) == (256, 0)
    assert result["W1"]["rss_peak_mb"] > 100


@pytest.mark.parametrize("way", ["--endpoint", "--http"])
def test_a_server_is_measured_by_every_token_it_sends(capsys: pytest.CaptureFixture[str], pod: Pod, way: str) -> None:
    where = f"127.0.0.1:{pod.grpc_port}" if way == "--endpoint" else f"http://127.0.0.1:{pod.http_port}/"
    result = _result(capsys, way, where, "--workloads", "W1,W4w", "--reps", "2")
    assert set(result) == {"W1", "W4w"}
    assert (result["W1"]["output_tokens"], result["W4w"]["output_tokens"]) == (256, 512)
    assert [result[name]["short_outputs"] for name in ("W1", "W4w")] == [0, 0]
    assert result["W1"]["reps"] == 2


def test_what_an_earlier_run_left_in_the_cache_is_not_found_again(capsys: pytest.CaptureFixture[str], pod: Pod) -> None:
    hits = []
    for _ in range(2):
        before = pod.engine.stats.hit_tokens
        _result(
            capsys, "--endpoint", f"127.0.0.1:{pod.grpc_port}", "--workloads", "W3", "--reps", "1", "--seed", "same"
        )
        hits.append(pod.engine.stats.hit_tokens - before)
    assert hits == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workloads", "W9"], "--workloads: 'W9' is no workload; choose of W1"),
        (["--reps", "0"], "--reps: 0 is not between 1 and"),
        (["--endpoint", "nowhere"], "--endpoint: 'nowhere' is not host:port"),
        (["--http", "ftp://host"], "--http: 'ftp://host' does not begin with http://"),
        (["--http", "http://host", "--endpoint", "host:1"], "not allowed with"),
        (["--worklods", "W1"], "did you mean --workloads?"),
    ],
)
def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "serve", *arguments])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "host:1", "--dtype", "float32"], "--dtype: is for an engine in this process"),
        (["--http", "http://host", "--secrets-dir", "."], "--secrets-dir: is for an engine in this process"),
        (["--server-pid", "1"], "--server-pid: the engine runs in this process"),
        (["--api-key-file", "key"], "--api-key-file: is for --endpoint or --http"),
        (["--http", "http://host", "--ca-file", "ca.pem"], "--ca-file: is for --endpoint"),
        (["--runner", "simulated", "--num-gpu-blocks-override", "70", "--workloads", "W1,W5"], "--workloads: W5 has"),
    ],
)
def test_what_cannot_work_together_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["bench", "serve", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "127.0.0.1:1"], "UNAVAILABLE"),
        (["--http", "http://127.0.0.1:1"], "http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_a_server_that_is_not_there_is_one_line_and_a_failure(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["bench", "serve", *arguments]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("headstart: ")
    assert words in last


def test_ids_are_drawn_from_a_small_vocabulary_too_and_an_open_limit_limits_nothing() -> None:
    assert token_ids_for(ModelLimits(5000, 300), ["W5"]) == range(150, 300)
    assert token_ids_for(ModelLimits(None, None), ["W5"]) == range(1000, 49_000)
    with pytest.raises(ConfigError, match="W5 has requests of 4104 tokens; 4103 fit"):
        token_ids_for(ModelLimits(4103, None), ["W1", "W5"])


@pytest.mark.parametrize(
    ("event", "num_tokens"),
    [
        ({"choices": [{"text": "ab", "token_ids": [1, 2]}]}, 2),
        ({"choices": [{"text": "", "token_ids": []}]}, 0),
        ({"choices": [{"text": "ab"}]}, 1),
        ({"choices": [{"text": "", "finish_reason": "length"}]}, 0),
        ({"choices": [], "usage": {"completion_tokens": 9}}, 4),
        ({"choices": [], "usage": {"completion_tokens": 5}}, 0),
    ],
)
def test_an_event_counts_by_its_ids_or_its_text_and_the_usage_says_what_is_missing(
    event: dict[str, Any], num_tokens: int
) -> None:
    assert count_tokens(event, 5) == num_tokens


def test_an_error_in_the_middle_of_a_stream_is_a_failure() -> None:
    with pytest.raises(UnavailableError, match="overloaded"):
        count_tokens({"error": {"message": "overloaded"}}, 5)
