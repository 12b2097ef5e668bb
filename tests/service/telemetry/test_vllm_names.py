"""The names that dashboards, autoscaling rules and endpoint pickers read, made of ours."""

from __future__ import annotations

from headstart.telemetry.requests import RequestInstruments, RequestRecord
from headstart.telemetry.signals import Signals, open_signals
from opentelemetry.metrics import Observation
from prometheus_client.parser import text_string_to_metric_families


def _signals(*, has_vllm_names: bool = True, has_info: bool = True) -> Signals:
    signals = open_signals(service_name="pod", instance_id="pod-0", has_vllm_names=has_vllm_names, environ={})
    if has_info:
        info = {"model": "tiny", "block_size": "16", "num_blocks": "64"}
        signals.meter.create_observable_gauge("headstart_pod_info", callbacks=[lambda _: [Observation(1, info)]])
    return signals


def _samples(signals: Signals) -> dict[tuple[str, str], float]:
    """vLLM's samples of the model, by name and reason or bound."""
    found = {}
    for family in text_string_to_metric_families(signals.exposition().decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                key = sample.labels.get("finished_reason") or sample.labels.get("le") or ""
                assert (sample.name, key) not in found
                found[sample.name, key] = sample.value
                assert sample.labels["engine"] == "0"
                assert sample.name == "vllm:cache_config_info" or sample.labels["model_name"] == "tiny"
    signals.shutdown(timeout_s=5)
    return found


def _record(operation: str = "chat", error_type: str = "", finish_reason: str = "stop") -> RequestRecord:
    return RequestRecord(
        operation=operation,
        model="tiny",
        input_tokens=10,
        cached_tokens=0,
        output_tokens=5,
        finish_reasons=(finish_reason,),
        duration_s=3.0,
        ttft_s=1.0,
        error_type=error_type,
    )


def test_without_the_setting_no_name_is_vllms() -> None:
    assert _samples(_signals(has_vllm_names=False)) == {}


def test_before_the_pod_knows_its_model_no_name_is_vllms() -> None:
    assert _samples(_signals(has_info=False)) == {}


def test_requests_of_all_kinds_are_added_up_and_failed_ones_have_no_latency() -> None:
    signals = _signals()
    instruments = RequestInstruments(signals.meter)
    for record in (
        _record(),
        _record(operation="text_completion", finish_reason="length"),
        _record(error_type="CANCELLED", finish_reason="cancelled"),
    ):
        instruments.record(record)
    found = _samples(signals)
    assert found["vllm:prompt_tokens_total", ""] == 30
    assert found["vllm:generation_tokens_total", ""] == 15
    reasons = {reason: value for (name, reason), value in found.items() if name == "vllm:request_success_total"}
    assert reasons == {"stop": 1, "length": 1, "abort": 1, "error": 0}
    assert found["vllm:e2e_request_latency_seconds_count", ""] == 2
    assert found["vllm:e2e_request_latency_seconds_bucket", "2.56"] == 0
    assert found["vllm:e2e_request_latency_seconds_bucket", "+Inf"] == 2
    assert found["vllm:time_to_first_token_seconds_sum", ""] == 2.0
    for name in ("inter_token_latency", "time_per_output_token", "request_time_per_output_token"):
        assert found[f"vllm:{name}_seconds_sum", ""] == 2 * 0.5


def test_gauges_and_counters_of_the_engine_keep_their_values() -> None:
    signals = _signals()
    gauges = {"headstart_requests_running": 3, "headstart_requests_waiting": 2, "headstart_kv_cache_usage_ratio": 0.5}
    for name, value in gauges.items():
        signals.meter.create_gauge(name).set(value)
    counters = {"headstart_prefix_cache_queried_tokens": 40, "headstart_prefix_cache_hit_tokens": 30}
    for name, value in counters.items():
        signals.meter.create_counter(name).add(value)
    signals.meter.create_counter("headstart_preemptions").add(1)
    assert _samples(signals) == {
        ("vllm:num_requests_running", ""): 3,
        ("vllm:num_requests_waiting", ""): 2,
        ("vllm:kv_cache_usage_perc", ""): 0.5,
        ("vllm:gpu_cache_usage_perc", ""): 0.5,
        ("vllm:prefix_cache_queries_total", ""): 40,
        ("vllm:prefix_cache_hits_total", ""): 30,
        ("vllm:num_preemptions_total", ""): 1,
        ("vllm:cache_config_info", ""): 1,
    }
