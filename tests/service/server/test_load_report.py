"""The load report against ORCA's own definition, written down here once more: field numbers and types."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from headstart.contract.identity import PodIdentity
from headstart.engine.messages import EngineStats
from headstart.server.load_report import encode_load_report

_FIELD = descriptor_pb2.FieldDescriptorProto


def orca_report():
    """xds.data.orca.v3.OrcaLoadReport as published by cncf/xds."""
    file = descriptor_pb2.FileDescriptorProto(
        name="orca_load_report.proto", package="xds.data.orca.v3", syntax="proto3"
    )
    report = file.message_type.add(name="OrcaLoadReport")
    doubles = {"cpu_utilization": 1, "mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
    for name, number in doubles.items():
        report.field.add(name=name, number=number, type=_FIELD.TYPE_DOUBLE, label=_FIELD.LABEL_OPTIONAL)
    for name, number in {"request_cost": 4, "utilization": 5, "named_metrics": 8}.items():
        entry = report.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=_FIELD.TYPE_DOUBLE, label=_FIELD.LABEL_OPTIONAL)
        type_name = f".xds.data.orca.v3.OrcaLoadReport.{entry.name}"
        report.field.add(
            name=name, number=number, type=_FIELD.TYPE_MESSAGE, label=_FIELD.LABEL_REPEATED, type_name=type_name
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))


def test_orcas_readers_find_utilisation_and_queue():
    identity = PodIdentity(
        epoch="e",
        pod_name="p",
        pod_uid="u",
        model="m",
        model_fingerprint="",
        tokenizer_fingerprint="",
        hash_root_digest="",
        numerics_id="",
        block_size=16,
        capacity_blocks=100,
        max_num_seqs=8,
        context_length=64,
        vocab_size=10,
    )
    stats = EngineStats._make([0] * len(EngineStats._fields))._replace(running=4, waiting=3, referenced_blocks=25)
    report = orca_report().FromString(encode_load_report(identity, stats))
    assert (report.mem_utilization, report.application_utilization) == (0.25, 0.5)
    assert dict(report.named_metrics) == {
        "kv_cache_utilization": 0.25,
        "num_requests_running": 4.0,
        "num_requests_waiting": 3.0,
    }
    assert (report.cpu_utilization, report.eps, report.rps_fractional, dict(report.request_cost)) == (0, 0, 0, {})
