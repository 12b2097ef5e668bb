"""`headstart cache`: what a pod holds, as told by its state and by one snapshot of its cache events."""

from __future__ import annotations

import argparse
import json

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from headstart.cli import client
from headstart.cli.snapshot import Held, read_snapshot
from headstart.cli.verify import run_verify
from headstart.contract.proto import prefix_cache_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2_grpc as rpc


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["show", "verify"],
        help="show: counts, rates and the shape of a pod's cached chains. "
        "verify: compare an operator's index with the true set of each of its pods.",
    )
    parser.add_argument("--json", action="store_true", help="One JSON object instead of a table.")
    client.add_endpoint_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    if parsed.what == "verify":
        return run_verify(parsed.endpoint, timeout=parsed.timeout, is_json=parsed.json)

    def show() -> int:
        with client.open_channel(parsed.endpoint) as channel:
            stub = rpc.PrefixCacheStub(channel)
            state = stub.GetState(pb.GetStateRequest(), timeout=parsed.timeout)
            held = read_snapshot(stub, parsed.timeout)
        rows = summarise(state, held)
        if parsed.json:
            fields = MessageToDict(state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            print(json.dumps({"state": fields, "cache": dict(rows)}))
            return 0
        table = Table(title=f"prefix cache of {held.hello.pod_name or parsed.endpoint}", show_header=False)
        for name, value in rows:
            table.add_row(name, value)
        Console().print(table)
        return 0

    return client.report_failure(show, parsed.endpoint)


def summarise(state: pb.State, held: Held) -> list[tuple[str, str]]:
    """Rows of (name, value) for people: blocks by use, hit rate, chains, digest."""
    xor = 0
    for block_hash in held.parents:
        xor ^= block_hash
    children = set(held.parents.values())
    roots = sum(1 for parent in held.parents.values() if parent == 0)
    leaves = sum(1 for block_hash in held.parents if block_hash not in children)
    hit_rate = f"{state.hit_tokens / state.queried_tokens:.1%}" if state.queried_tokens else "no prompt yet"
    return [
        ("model", held.hello.model),
        ("block size", f"{held.hello.block_size} tokens"),
        ("blocks in use", str(state.referenced_blocks)),
        ("blocks cached and idle", str(state.cached_blocks)),
        ("blocks free", str(state.free_blocks)),
        ("prompt tokens looked up", str(state.queried_tokens)),
        ("of them cached", f"{state.hit_tokens} ({hit_rate})"),
        ("tokens computed", str(state.computed_tokens)),
        ("requests running, waiting", f"{state.running}, {state.waiting}"),
        ("preemptions", str(state.preemptions)),
        ("hashes held", str(len(held.parents))),
        ("first blocks, chain ends", f"{roots}, {leaves}"),
        ("digest (xor of hashes)", f"{xor:016x}"),
        ("epoch, seq", f"{held.hello.epoch[:8]}, {held.seq}"),
    ]
