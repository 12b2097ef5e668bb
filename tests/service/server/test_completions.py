"""OpenAI's own client against a pod's HTTP, its probes and its metrics, over a real engine."""

import asyncio
import io
import socket
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.web import Web
from headstart.errors import ConfigError
from headstart.server.metrics import PodMetrics
from service.server.conftest import until


def web_for(pod, *, metrics_port=0):
    return Web(
        pod.signals,
        probes=pod.health.probes(),
        entrance=pod.services.entrance,
        host="127.0.0.1",
        http_port=0,
        metrics_port=metrics_port,
    )


@asynccontextmanager
async def web_of(pod):
    web = web_for(pod)
    await web.start()
    try:
        metrics = PodMetrics(pod.signals.meter, pod.engine, identity=pod.identity)
        web.attach(pod.services.completions, refresh=metrics.take_steps)
        base_url = f"http://127.0.0.1:{web.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            yield web, client
    finally:
        await web.stop()


async def get(port, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def samples(port):
    """Every sample of the exposition: its name and labels as written, and its value."""
    status, text = await get(port, "/metrics")
    assert status == 200
    return {
        key: float(value)
        for key, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    }


MESSAGES = [{"role": "user", "content": "hello there"}]


async def test_the_served_model_is_listed_with_its_context_length(start_pod):
    async with web_of(await start_pod()) as (_, client):
        (model,) = (await client.models.list()).data
        assert (model.id, model.owned_by, model.max_model_len) == ("tiny", "headstart", 512)
        assert (await client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("huge")


async def test_a_chat_gives_the_text_that_grpc_gives_whole_and_streamed(start_pod):
    pod = await start_pod()
    chat = pb.Chat(messages=[pb.Message(role="user", content=[pb.ContentPart(text="hello there")])])
    expected = (await pod.generate(chat=chat, max_tokens=12)).text()
    async with web_of(pod) as (_, client):
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12)
        stream = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_completion_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    (choice,) = whole.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", expected, "length")
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices].count("length") == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_says_how_much_of_the_prompt_was_cached(start_pod):
    async with web_of(await start_pod()) as (_, client):
        first = await client.completions.create(model="tiny", prompt="a prompt of some length", max_tokens=2)
        second = await client.completions.create(model="tiny", prompt="a prompt of some length", max_tokens=2)
    assert first.usage.prompt_tokens == second.usage.prompt_tokens == 23
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == 20
    assert second.usage.total_tokens == 25


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(start_pod):
    pod = await start_pod()
    expected = [(await pod.generate(text=text, max_tokens=3)).text() for text in ("one", "two")]
    async with web_of(pod) as (_, client):
        whole = await client.completions.create(model="tiny", prompt=["one", "two"], n=2, max_tokens=3)
        ids = await client.completions.create(model="tiny", prompt=[list(b"one"), list(b"two")], max_tokens=3)
        stream = await client.completions.create(model="tiny", prompt=["one", "two"], n=2, max_tokens=3, stream=True)
        streamed = dict.fromkeys(range(4), "")
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    wanted = [expected[0], expected[0], expected[1], expected[1]]
    assert [(choice.index, choice.text) for choice in whole.choices] == list(enumerate(wanted))
    assert [choice.text for choice in ids.choices] == expected
    assert list(streamed.values()) == wanted
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 12)


async def test_a_stop_string_ends_a_choice_as_it_does_over_grpc(start_pod):
    pod = await start_pod()
    text = (await pod.generate(text="a prompt", max_tokens=20)).text()
    stop = text[6:8]
    async with web_of(pod) as (_, client):
        answer = await client.completions.create(model="tiny", prompt="a prompt", max_tokens=20, stop=stop)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


async def test_logprobs_have_the_form_of_each_endpoint(start_pod):
    async with web_of(await start_pod()) as (_, client):
        chat = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
        )
        plain = await client.completions.create(model="tiny", prompt="a prompt", max_tokens=3, logprobs=1)
    entries = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == chat.choices[0].message.content
    assert [bytes(entry.bytes).decode() for entry in entries] == list(chat.choices[0].message.content)
    logprobs = plain.choices[0].logprobs
    assert "".join(logprobs.tokens) == plain.choices[0].text
    assert logprobs.text_offset == [0, 1, 2]
    assert len(logprobs.top_logprobs) == 3
    assert all(logprob <= 0.0 for logprob in logprobs.token_logprobs)


async def test_what_the_engine_refuses_is_a_bad_request_that_names_openais_field(start_pod):
    async with web_of(await start_pod()) as (_, client):
        with pytest.raises(openai.BadRequestError) as hot:
            await client.completions.create(model="tiny", prompt="a", temperature=11)
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(model="tiny", prompt="a" * 600, stream=True)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="huge", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as tools:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[])
    assert (hot.value.param, long.value.param, tools.value.param) == ("temperature", "prompt", "tools")
    assert "600 tokens" in long.value.message


async def test_a_full_queue_says_when_to_come_back(start_pod):
    pod = await start_pod(max_queued_requests=1)
    pod.runner.hold()
    async with web_of(pod) as (_, client):
        taken = []
        for text in "ab":
            taken.append(asyncio.ensure_future(client.completions.create(model="tiny", prompt=text, max_tokens=1)))
            await until(lambda: pod.engine.num_in_flight == len(taken))
            await until(lambda: pod.engine.num_queued == len(taken) - 1)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.completions.create(model="tiny", prompt="c", max_tokens=1)
        pod.runner.free()
        await asyncio.gather(*taken)
    assert refused.value.status_code == 503
    assert int(refused.value.response.headers["retry-after-ms"]) > 0


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(start_pod, is_streamed):
    pod = await start_pod()
    async with web_of(pod) as (_, client):
        pod.runner.hold()
        asking = asyncio.ensure_future(
            client.completions.create(model="tiny", prompt="a prompt", max_tokens=300, stream=is_streamed)
        )
        pod.runner.let(3)
        # The engine may be ahead of the server, which must have heard of the request to hear that it is over.
        await until(lambda: pod.runner.num_steps == 3 and pod.services.completions.num_running == 1)
        if is_streamed:
            await (await asking).close()
        else:
            asking.cancel()
        await until(lambda: pod.services.completions.num_running == 0)
        pod.runner.let(200)  # far fewer than its tokens, and more than are taken before the engine hears of it
        await pod.quiescent()


async def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(start_pod):
    pod = await start_pod()
    async with web_of(pod) as (_, client):
        pod.runner.hold()
        stream = asyncio.ensure_future(
            client.completions.create(
                model="tiny", prompt="a prompt", max_tokens=9, stream=True, extra_body={"request_id": "sick"}
            )
        )
        pod.runner.let(1)
        chunks = aiter(await stream)
        assert (await anext(chunks)).choices[0].text
        pod.runner.faulty_ids.add("sick")
        pod.runner.free()
        with pytest.raises(openai.APIError, match="non-finite logits"):
            async for _ in chunks:
                pass


async def test_probes_answer_while_the_model_loads_and_requests_are_put_off(start_pod):
    pod = await start_pod()
    pod.health.leave()
    web = web_for(pod)
    await web.start()
    try:
        assert (await get(web.http_port, "/healthz"))[0] == 200
        assert (await get(web.http_port, "/readyz"))[0] == 503
        assert (await get(web.http_port, "/v1/models"))[0] == 503
        assert (await get(web.metrics_port, "/metrics"))[0] == 200
        assert (await get(web.metrics_port, "/v1/models"))[0] == 404
    finally:
        await web.stop()


async def test_a_taken_http_port_is_said_in_words(start_pod):
    pod = await start_pod()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        web = web_for(pod, metrics_port=port)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            await web.start()


async def test_the_sum_of_the_usages_is_what_the_counters_say(start_pod):
    """B141: one record of a request feeds all of them."""
    pod = await start_pod()
    async with web_of(pod) as (web, client):
        usages = [
            (await client.completions.create(model="tiny", prompt="a shared prompt", max_tokens=4)).usage
            for _ in range(3)
        ]
        await pod.generate(text="a shared prompt", max_tokens=4)
        found = await samples(web.metrics_port)
    labels = 'gen_ai_operation_name="text_completion",gen_ai_provider_name="headstart",gen_ai_request_model="tiny"'
    assert found["headstart_prefix_cache_queried_tokens_total"] == 4 * usages[0].prompt_tokens
    assert found["headstart_prefix_cache_hit_tokens_total"] == 12 + sum(
        usage.prompt_tokens_details.cached_tokens for usage in usages
    )
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert found[f"gen_ai_server_{name}_seconds_count{{{labels}}}"] == 4
    blocks = {state: found[f'headstart_kv_blocks{{state="{state}"}}'] for state in ("referenced", "cached", "free")}
    assert sum(blocks.values()) == pod.pool.num_blocks
    assert (blocks["referenced"], found["headstart_kv_cache_usage_ratio"]) == (0, 0)
    assert (found["headstart_requests_running"], found["headstart_requests_waiting"]) == (0, 0)
    assert found["headstart_step_seconds_count"] == found["headstart_step_tokens_count"] == pod.runner.num_steps
    assert found["headstart_step_tokens_sum"] == found["headstart_computed_tokens_total"]
    assert found["headstart_preemptions_total"] == 0


@pytest.mark.parametrize(
    ("method", "path", "size", "status"),
    [
        ("GET", "/v1/nothing", 0, 404),
        ("GET", "/v1/completions", 0, 405),
        ("POST", "/v1/completions", (1 << 20) + 1, 413),
        ("POST", "/v1/completions", 3, 400),
    ],
)
async def test_every_refusal_is_an_openai_error_object(start_pod, method, path, size, status):
    async with web_of(await start_pod()) as (web, _), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{web.http_port}{path}"
        async with session.request(method, url, data=io.BytesIO(b"x" * size)) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"]
