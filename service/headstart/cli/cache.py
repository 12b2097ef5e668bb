"""`headstart cache show`: what a pod holds, as told by its state and by one snapshot of its cache events."""

from __future__ import annotations

import argparse
import json
from typing import NamedTuple

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from headstart.cli import client
from headstart.contract.proto import prefix_cache_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2_grpc as rpc


class Held(NamedTuple):
    """A pod's cached blocks at one moment: hash -> parent, and what the pod says of itself."""

    hello: pb.Hello
    seq: int
    parents: dict[int, int]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["show"], help="show: counts, rates and the shape of the cached chains.")
    parser.add_argument("--json", action="store_true", help="One JSON object instead of a table.")
    client.add_endpoint_flags(parser)


def run(parsed: argparse.Namespace) -> int:
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


def read_snapshot(stub: rpc.PrefixCacheStub, timeout: float | None) -> Held:
    """All hashes that the pod holds now; the stream is closed after the snapshot's last chunk."""
    updates = stub.Watch(pb.WatchRequest(), timeout=timeout)
    hello = pb.Hello()
    parents: dict[int, int] = {}
    seq = 0
    for update in updates:
        if update.HasField("hello"):
            hello = update.hello
        elif update.HasField("snapshot"):
            parents.update(zip(update.snapshot.hashes, update.snapshot.parents, strict=True))
            seq = update.snapshot.seq
            if update.snapshot.last:
                break
    updates.cancel()
    return Held(hello, seq, parents)


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
