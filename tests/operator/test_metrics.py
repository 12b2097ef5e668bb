"""What the router tells of its own decisions."""

from __future__ import annotations

from headstart.telemetry.signals import Additions, open_signals
from headstart_operator.metrics import VIEWS, RouteMetrics


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
