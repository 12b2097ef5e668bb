"""What a pod tells of its requests: under vLLM's names, and with or without their words."""

import json
import logging

import pytest
from headstart.server.metrics import PodMetrics

SECRET = "the crow flies at midnight"
GENERATE = "headstart.v1.Inference/Generate"


def span_of(pod):
    (span,) = [span for span in pod.spans.get_finished_spans() if span.name == GENERATE]
    return span


async def test_vllms_names_hold_what_a_scrape_of_ours_holds(start_pod):
    pod = await start_pod(has_vllm_names=True)
    metrics = PodMetrics(pod.signals.meter, pod.engine, identity=pod.identity)
    for _ in range(2):
        await pod.generate(text="a shared prompt of some blocks", max_tokens=4)
    metrics.take_steps()
    text = pod.signals.exposition().decode()
    found = {
        key: float(value)
        for key, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    }
    labels = '{engine="0",model_name="tiny"}'
    assert found[f"vllm:prefix_cache_queries_total{labels}"] == found["headstart_prefix_cache_queried_tokens_total"]
    assert found[f"vllm:prefix_cache_hits_total{labels}"] == found["headstart_prefix_cache_hit_tokens_total"] > 0
    assert found[f"vllm:generation_tokens_total{labels}"] == 8
    assert found[f"vllm:time_to_first_token_seconds_count{labels}"] == 2
    assert found[f"vllm:num_requests_running{labels}"] == 0
    assert found[f"vllm:kv_cache_usage_perc{labels}"] == found[f"vllm:gpu_cache_usage_perc{labels}"] == 0
    sizes = f'block_size="{pod.identity.block_size}",engine="0",num_gpu_blocks="256"'
    assert found[f"vllm:cache_config_info{{{sizes}}}"] == 1


async def test_with_content_captured_the_span_has_the_words_of_both_sides(start_pod):
    pod = await start_pod(captures_content=True)
    answer = await pod.generate(text=SECRET, max_tokens=4)
    said = span_of(pod).attributes
    (asked,) = json.loads(said["gen_ai.input.messages"])
    (answered,) = json.loads(said["gen_ai.output.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": SECRET}]}
    assert answered["parts"][0]["content"] == answer.text()
    assert answered["finish_reason"] == "length"


@pytest.mark.parametrize("captures_content", [False, True])
async def test_words_are_in_no_span_log_line_or_metric_unless_they_are_captured(start_pod, caplog, captures_content):
    pod = await start_pod(captures_content=captures_content, has_vllm_names=True)
    with caplog.at_level(logging.DEBUG):
        answer = await pod.generate(text=SECRET, max_tokens=4)
        await pod.generate(text=SECRET, max_tokens=4, model="another")
        await pod.generate(text=SECRET, max_tokens=4, stop_strings=[""])
        pod.runner.faulty_ids.add("sick")
        await pod.generate(text=SECRET, max_tokens=4, request_id="sick")
    spans = "\n".join(span.to_json() for span in pod.spans.get_finished_spans())
    assert answer.text()
    for words in (SECRET, json.dumps(answer.text())[1:-1]):
        assert (words in spans.replace('\\"', '"')) == captures_content
        assert words not in caplog.text
        assert words not in pod.signals.exposition().decode()
