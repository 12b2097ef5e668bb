"""The trace and the metrics of requests that go through the operator to a pod, as a collector and a scraper get them.

The collector is a real OTLP service on loopback, named by the standard variable only.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import grpc.aio
import openai
import pytest
from headstart.contract.proto import inference_pb2 as pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from operator_rig import Rig, generate, prompt, rig, until

_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
_CALLER_SPAN = "00f067aa0ba902b7"
_METADATA = (("traceparent", f"00-{_TRACE_ID}-{_CALLER_SPAN}-01"),)
_GENERATE = "headstart.v1.Inference/Generate"
_CANARY = 31_337
_MODEL = "simulated"


class Collector(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
    """Keeps what it is sent: spans by the service that made them, and the names of metrics."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []
        self.metrics: set[str] = set()
        self.bytes = b""

    async def Export(self, request: Any, context: Any) -> Any:
        self.bytes += request.SerializeToString()
        if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
            for resource in request.resource_metrics:
                self.metrics |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            return metrics_service_pb2.ExportMetricsServiceResponse()
        for resource in request.resource_spans:
            service = _attributes(resource.resource)["service.name"]
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, service: str, name: str) -> trace_pb2.Span:
        (span,) = [span for made_by, span in self.spans if (made_by, span.name) == (service, name)]
        return span


def _attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span or a resource; a list as a list."""
    found = {}
    for pair in holder.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@asynccontextmanager
async def _collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    try:
        yield collector
    finally:
        await server.stop(None)


@pytest.fixture(autouse=True)
def _nothing_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


def _request(*, max_tokens: int = 4, n: int = 1) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=prompt(3, 64), max_tokens=max_tokens, n=n, ignore_eos=True)


async def test_operator_and_pod_continue_the_callers_trace_and_the_pod_says_where_the_time_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _collector(monkeypatch) as collector:
        async with rig(1) as r:
            await generate(r.stub, _request())
            answer = await generate(r.stub, _request(), metadata=_METADATA)
        traced = [(made_by, span) for made_by, span in collector.spans if span.trace_id.hex() == _TRACE_ID]
        collector.spans = traced
        hop, pod = collector.named("headstart-operator", _GENERATE), collector.named("headstart", _GENERATE)
    assert hop.parent_span_id.hex() == _CALLER_SPAN
    assert pod.parent_span_id == hop.span_id
    assert {hop.kind, pod.kind} == {trace_pb2.Span.SPAN_KIND_SERVER}
    phases = [span for _, span in traced if span.parent_span_id == pod.span_id]
    phases.sort(key=lambda span: span.start_time_unix_nano)
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert len(traced) == 5
    for earlier, later in itertools.pairwise(phases):
        assert earlier.end_time_unix_nano == later.start_time_unix_nano
    route = answer.finished[0].route
    said = _attributes(hop)
    assert said["headstart.route.pod"] == route.pod == "pod-0"
    assert said["headstart.route.predicted_cached_tokens"] == route.predicted_cached_tokens == 63
    said = _attributes(pod)
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (64, 4)
    assert said["gen_ai.usage.cache_read.input_tokens"] == 63
    assert said["rpc.response.status_code"] == "OK"


async def test_a_refused_and_a_cancelled_call_are_recorded_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _collector(monkeypatch) as collector:
        async with rig(1, runner__step_seconds=0.02) as r:
            with pytest.raises(grpc.aio.AioRpcError):
                await generate(r.stub, _request(n=200))
            call = r.stub.Generate(_request(max_tokens=500), metadata=_METADATA)
            await call.read()
            call.cancel()
            await until(lambda: r.operator.balancer.num_running == 0)
        refused = [span for _, span in collector.spans if "INVALID_ARGUMENT" in _attributes(span).values()]
        cancelled = [(made_by, span) for made_by, span in collector.spans if span.trace_id.hex() == _TRACE_ID]
    assert [span.status.code for span in refused] == [trace_pb2.Status.STATUS_CODE_UNSET]
    hops = {made_by: _attributes(span) for made_by, span in cancelled if span.name == _GENERATE}
    assert {name: said["error.type"] for name, said in hops.items()} == {
        "headstart": "CANCELLED",
        "headstart-operator": "CANCELLED",
    }


async def test_nothing_of_a_prompt_leaves_with_spans_or_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _collector(monkeypatch) as collector, rig(1) as r:
        await generate(r.stub, pb.GenerateRequest(token_ids=pb.TokenIds(ids=[_CANARY] * 40), max_tokens=2))
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(r.stub, pb.GenerateRequest(text="canary-prompt", max_tokens=2, model="canary-model"))
        text = await _scrape(r.operator.web.metrics_port) + await _scrape(r.pods[0].metrics_port)
    assert collector.spans
    for told in (collector.bytes, text.encode()):
        assert b"canary" not in told
        assert str(_CANARY).encode() not in told


async def test_requests_do_not_wait_for_a_dead_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """B142: nobody listens on the discard port."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with rig(1) as r:
        for _ in range(5):
            assert len((await generate(r.stub, _request())).token_ids[0]) == 4


async def test_the_operators_metrics_say_how_right_it_was_and_what_it_knows() -> None:
    # A prefill that takes time: a pod that a busy machine held up is still the cheaper one for its own prefix.
    async with rig(2, runner__token_seconds=0.005) as r:
        for _ in range(3):
            await generate(r.stub, _request())
        operator, pods = await _scrape(r.operator.web.metrics_port), [await _scrape(p.metrics_port) for p in r.pods]
    found = _samples(operator)
    assert found["headstart_route_decision_seconds_count"] == 3
    errors = {
        bound: found[f'headstart_route_predicted_minus_actual_tokens_bucket{{le="{bound}"}}']
        for bound in ("-1.0", "0.0", "+Inf")
    }
    assert errors == {"-1.0": 0, "0.0": 3, "+Inf": 3}
    labels = f'gen_ai_operation_name="text_completion",gen_ai_provider_name="headstart",gen_ai_request_model="{_MODEL}"'
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert found[f"gen_ai_server_{name}_seconds_count{{{labels}}}"] == 3
    assert found["headstart_generated_tokens_total"] == 3 * 4
    assert found["headstart_index_blocks"] == 4
    states = ("candidate", "draining", "lost", "other", "starting")
    assert [found[f'headstart_pods{{state="{state}"}}'] for state in states] == [2, 0, 0, 0, 0]
    reasons = ("behind", "digest", "epoch", "gap", "stream")
    assert [found[f'headstart_index_resyncs_total{{reason="{reason}"}}'] for reason in reasons] == [0] * 5
    hits = [_samples(text)["headstart_prefix_cache_hit_tokens_total"] for text in pods]
    assert sum(hits) == 2 * 63


async def test_openais_client_is_served_by_the_operator() -> None:
    async with rig(2) as r, _client(r) as client:
        (model,) = (await client.models.list()).data
        ids = list(prompt(3, 64).ids)
        expected = await generate(r.stub, _request())
        whole = await client.completions.create(
            model=model.id, prompt=ids, max_tokens=4, extra_body={"ignore_eos": True}
        )
        stream = await client.completions.create(
            model=model.id,
            prompt=ids,
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="another", prompt=ids)
    assert whole.choices[0].text == _text(expected.messages)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 63
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


async def test_probes_and_metrics_are_on_the_operators_http_port_too() -> None:
    async with rig(1) as r, aiohttp.ClientSession() as session:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with session.get(f"http://127.0.0.1:{r.operator.web.http_port}{path}") as response:
                assert response.status == 200, path


def _client(r: Rig) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{r.operator.web.http_port}/v1", api_key="none", max_retries=0)


def _text(messages: list[pb.GenerateResponse]) -> str:
    return "".join(message.chunk.text for message in messages)


async def _scrape(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        assert response.status == 200
        return await response.text()


def _samples(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {key: float(value) for key, _, value in lines}
