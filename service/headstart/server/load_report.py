"""The load that a call's trailers carry, in the form that ORCA-aware proxies and gateways read."""

from __future__ import annotations

from headstart.contract.identity import PodIdentity
from headstart.contract.proto import orca_pb2
from headstart.engine.messages import EngineStats

LOAD_REPORT_KEY = "endpoint-load-metrics-bin"


def encode_load_report(identity: PodIdentity, stats: EngineStats) -> bytes:
    """A serialised `LoadReport` as of the last step. The metric names are those that endpoint pickers look for."""
    usage = stats.referenced_blocks / identity.capacity_blocks
    report = orca_pb2.LoadReport(
        mem_utilization=usage,
        application_utilization=stats.running / identity.max_num_seqs,
        named_metrics={
            "kv_cache_utilization": usage,
            "num_requests_running": stats.running,
            "num_requests_waiting": stats.waiting,
        },
    )
    return report.SerializeToString()
