"""What a pod tells of its requests, whoever ended them: under vLLM's names too, and with or without their words."""

import asyncio
import json
import logging
from contextlib import aclosing

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.hop import Hop
from headstart.server.metrics import PodMetrics
from service.server.conftest import until
from service.server.test_completions import web_of

SECRET = "the crow flies at midnight"
GENERATE = "headstart.v1.Inference/Generate"


def span_of(pod):
    (span,) = [span for span in pod.spans.get_finished_spans() if span.name == GENERATE]
    return span


def samples(pod):
    lines = pod.signals.exposition().decode().splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


async def cancelled_by_the_client(pod):
    call = pod.call(max_tokens=300)
    await call.read()
    await until(lambda: pod.runner.num_steps == 5)
    call.cancel()
    await until(lambda: pod.services.completions.num_running == 0)


async def whose_deadline_passes(pod):
    await pod.generate(max_tokens=300, timeout=0.2)
    await until(lambda: pod.services.completions.num_running == 0)


async def whose_http_client_leaves(pod):
    async with web_of(pod) as (_, client):
        stream = await client.completions.create(model="tiny", prompt="a prompt", max_tokens=300, stream=True)
        await until(lambda: pod.runner.num_steps == 5)
        await stream.close()
        await until(lambda: pod.services.completions.num_running == 0)
        pod.runner.free()


async def that_the_pod_ends_itself(pod):
    call = pod.call(max_tokens=300)
    await call.read()
    await until(lambda: pod.runner.num_steps == 5)
    pod.services.completions.stop()


@pytest.mark.parametrize(
    "leave", [cancelled_by_the_client, whose_deadline_passes, whose_http_client_leaves, that_the_pod_ends_itself]
)
async def test_a_request_that_is_broken_off_is_told_of_once_with_what_was_done(start_pod, leave):
    pod = await start_pod(has_vllm_names=True)
    metrics = PodMetrics(pod.signals.meter, pod.engine, identity=pod.identity)
    pod.runner.hold()
    pod.runner.let(5)
    await leave(pod)
    pod.runner.free()
    await until(lambda: len(pod.spans.get_finished_spans()) == 4)
    *phases, hop = pod.spans.get_finished_spans()
    said, num_tokens = hop.attributes, pod.runner.num_steps
    assert num_tokens >= 5
    assert said["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert said["gen_ai.usage.output_tokens"] == num_tokens
    assert said["gen_ai.response.time_to_first_chunk"] > 0
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    assert all(phase.parent.span_id == hop.context.span_id for phase in phases)
    metrics.take_steps()
    found = samples(pod)
    assert found['headstart_finished_choices_total{finished_reason="cancelled"}'] == 1
    assert found["headstart_generated_tokens_total"] == num_tokens
    assert found['vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'] == 1


async def test_choices_that_never_ran_are_told_of_and_those_that_were_refused_are_not(start_pod):
    pod = await start_pod(max_queued_requests=1)
    pod.runner.hold()
    running = pod.call(request_id="running")
    await until(lambda: pod.engine.num_in_flight == 1 and pod.engine.num_queued == 0)
    waiting = pod.call(request_id="waiting")
    await until(lambda: pod.engine.num_queued == 1)
    refused = await pod.generate(request_id="refused")
    assert refused.code.name == "UNAVAILABLE"
    waiting.cancel()
    running.cancel()
    await until(lambda: pod.services.completions.num_running == 0)
    pod.runner.free()
    await until(lambda: samples(pod)['headstart_finished_choices_total{finished_reason="cancelled"}'] == 2)


async def test_several_prompts_of_one_call_are_told_of_together(start_pod):
    pod = await start_pod(captures_content=True)
    prompts = ["a shared prompt", "a shared prompt of more", SECRET]
    with pod.signals.tracer.start_as_current_span(GENERATE):
        hop = Hop()

        async def run(number):
            request = pb.GenerateRequest(text=prompts[number], max_tokens=3 + number, request_id=f"r-{number}", n=2)
            async with aclosing(pod.services.completions.generate(request, hop=hop)) as messages:
                return [message async for message in messages]

        answers = await asyncio.gather(*(run(number) for number in range(3)))
    said = span_of(pod).attributes
    usages = [
        message.finished.usage for messages in answers for message in messages if message.finished.usage.prompt_tokens
    ]
    assert said["gen_ai.usage.input_tokens"] == sum(len(prompt) for prompt in prompts)
    assert said["gen_ai.usage.output_tokens"] == sum(usage.completion_tokens for usage in usages) == 2 * (3 + 4 + 5)
    assert said["gen_ai.response.finish_reasons"] == ("length",) * 6
    assert said["gen_ai.request.choice.count"] == 6
    assert said["gen_ai.response.id"].startswith("r-0")
    asked = [message["parts"][0]["content"] for message in json.loads(said["gen_ai.input.messages"])]
    assert asked == prompts
    texts = [
        "".join(message.chunk.text for message in messages if message.chunk.index == index and message.chunk.text)
        for messages in answers
        for index in range(2)
    ]
    answered = [message["parts"][0]["content"] for message in json.loads(said["gen_ai.output.messages"])]
    assert answered == texts


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
