"""vLLM's names for a pod's metrics, for the dashboards, autoscaling rules and endpoint pickers that read those.

They are made from our own families when somebody scrapes, so that nothing is counted twice. Only Prometheus' text has
them: OpenTelemetry allows no colon in a name. Meanings that differ are said in a family's help. Holds no state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

_INFO = "headstart_pod_info"

_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
_KEPT_LABELS = ("le", "finished_reason")
_REASONS = {"cancelled": "abort"}
"""Ours that vLLM spells in another way."""


class _Alias(NamedTuple):
    """Several of vLLM's names for one thing are from its different versions."""

    ours: str
    names: tuple[str, ...]
    help: str


_ALIASES = (
    _Alias("headstart_requests_running", ("num_requests_running",), "Requests with rows in the batch."),
    _Alias("headstart_requests_waiting", ("num_requests_waiting",), "Requests in the queue."),
    _Alias(
        "headstart_kv_cache_usage_ratio",
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "Share of the KV blocks that requests hold; 1 is all.",
    ),
    _Alias("headstart_prefix_cache_queried_tokens", ("prefix_cache_queries",), "Prompt tokens looked up."),
    _Alias("headstart_prefix_cache_hit_tokens", ("prefix_cache_hits",), "Of those, tokens found."),
    _Alias("headstart_preemptions", ("num_preemptions",), "Requests taken out of the batch to make room."),
    _Alias("headstart_prompt_tokens", ("prompt_tokens",), "Prompt tokens of requests that ended."),
    _Alias("headstart_generated_tokens", ("generation_tokens",), "Tokens that requests had made when they ended."),
    _Alias("headstart_finished_choices", ("request_success",), "Choices that ended, by reason."),
    _Alias(
        "gen_ai_server_time_to_first_token_seconds",
        ("time_to_first_token_seconds",),
        "From a request's arrival to its first token.",
    ),
    _Alias(
        "gen_ai_server_time_per_output_token_seconds",
        ("inter_token_latency_seconds", "time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        "Time per token after the first: one value a request, its mean.",
    ),
    _Alias(
        "gen_ai_server_request_duration_seconds",
        ("e2e_request_latency_seconds",),
        "From a request's arrival to its end, of requests that ended well.",
    ),
)


def vllm_families(families: Iterable[Metric]) -> list[Metric]:
    """The same numbers under `vllm:*`, labelled with the model; nothing until the pod has said what it serves."""
    ours = {family.name: family for family in families}
    if _INFO not in ours or not ours[_INFO].samples:
        return []
    info = ours[_INFO].samples[0].labels
    labels = {"model_name": info["model"], "engine": "0"}
    found = [
        _renamed(ours[alias.ours], f"vllm:{name}", alias.help, labels)
        for alias in _ALIASES
        if alias.ours in ours
        for name in alias.names
    ]
    config = Metric("vllm:cache_config_info", "Size of a KV block and how many there are.", "gauge")
    sizes = {"block_size": info["block_size"], "num_gpu_blocks": info["num_blocks"]}
    config.add_sample(config.name, {"engine": "0", **sizes}, 1)
    return [*found, config]


def _renamed(family: Metric, name: str, help_text: str, labels: Mapping[str, str]) -> Metric:
    """Samples that only differ in labels that vLLM has not are added up; those of errors are left out."""
    renamed = Metric(name, help_text, family.type)
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if suffix in _SUFFIXES and not sample.labels.get("error_type"):
            sums[suffix, tuple(_kept(sample.labels).items())] += sample.value
    for (suffix, kept), value in sums.items():
        renamed.add_sample(name + suffix, {**labels, **dict(kept)}, value)
    return renamed


def _kept(labels: Mapping[str, str]) -> dict[str, str]:
    kept = {name: labels[name] for name in _KEPT_LABELS if name in labels}
    if "finished_reason" in kept:
        kept["finished_reason"] = _REASONS.get(kept["finished_reason"], kept["finished_reason"])
    return kept
