"""What the router tells of its own decisions."""

from __future__ import annotations

import asyncio

from headstart.contract.proto import inference_pb2 as pb
from headstart.telemetry.signals import Additions, open_signals
from headstart_operator.serving.metrics import VIEWS, FleetMetrics, RouteMetrics
from operator_rig import generate, prompt, rig, until


def test_tokens_that_were_foretold_too_few_are_counted_as_those_that_were_too_many() -> None:
    signals = open_signals(service_name="r", instance_id="r-0", additions=Additions(views=VIEWS), environ={})
    metrics = RouteMetrics(signals.meter)
    for predicted, actual in ((0, 32), (16, 16), (48, 0)):
        metrics.ended(predicted_tokens=predicted, actual_tokens=actual)
    lines = signals.exposition().decode().splitlines()
    signals.shutdown(timeout_s=5)
    name = "headstart_route_predicted_minus_actual_tokens"
    assert f"# TYPE {name} histogram" in lines
    counts = dict(line.split() for line in lines if line.startswith(f"{name}_bucket"))
    bounds = ("-64.0", "-16.0", "-1.0", "0.0", "16.0", "64.0", "+Inf")
    assert [float(counts[f'{name}_bucket{{le="{bound}"}}']) for bound in bounds] == [0, 1, 1, 2, 2, 3, 3]


async def test_requests_in_progress_are_told_apart_by_whether_they_wait_for_a_pod() -> None:
    async with rig(1, scheduler__max_num_seqs=4, runner__step_seconds=0.02) as r:
        balancer = r.operator.balancer
        signals = open_signals(service_name="r", instance_id="r-0", environ={})
        metrics = FleetMetrics(signals.meter, r.operator.fleet, balancer.count_requests)
        requests = [pb.GenerateRequest(token_ids=prompt(start, 48), max_tokens=40) for start in range(8)]
        tasks = [asyncio.create_task(generate(r.stub, request)) for request in requests]
        await until(lambda: balancer.num_waiting == 3)
        metrics.refresh()
        lines = signals.exposition().decode().splitlines()
        signals.shutdown(timeout_s=5)
        await asyncio.gather(*tasks)
    assert 'headstart_route_requests{state="waiting"} 3.0' in lines
    assert 'headstart_route_requests{state="running"} 5.0' in lines
