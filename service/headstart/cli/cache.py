"""`headstart cache`: what a pod holds, as told by its state and by one snapshot of its cache events."""

from __future__ import annotations

import argparse
import json
import operator
from functools import reduce
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from headstart.cli import client, nearest
from headstart.cli.snapshot import Held, read_snapshot
from headstart.cli.verify import run_verify
from headstart.contract.proto import prefix_cache_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2_grpc as rpc

_SUBCOMMANDS = ["show", "verify"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        type=_subcommand,
        metavar="show|verify",
        help="show: counts, rates and the shape of a pod's cached chains. "
        "verify: compare an operator's index with the true set of each of its pods. It calls the pods itself, with the "
        "same key, certificates and server name as the operator: both must accept them, the key as an administrator's.",
    )
    parser.add_argument("--json", action="store_true", help="One JSON object instead of a table.")
    client.add_endpoint_flags(parser)


def _subcommand(word: str) -> str:
    if word not in _SUBCOMMANDS:
        raise argparse.ArgumentTypeError(f"no such command: {word}{nearest(word, _SUBCOMMANDS)}; show or verify")
    return word


def run(parsed: argparse.Namespace) -> int:
    access = client.access_from(parsed)
    if parsed.what == "verify":
        return run_verify(parsed.endpoint, access, timeout=parsed.timeout, is_json=parsed.json)

    def show() -> int:
        with client.open_channel(parsed.endpoint, access) as channel:
            stub = rpc.PrefixCacheStub(channel)
            state = stub.GetState(pb.GetStateRequest(), timeout=parsed.timeout)
            held = read_snapshot(stub, parsed.timeout)
        if parsed.json:
            print(json.dumps(json_summary(state, held)))
            return 0
        table = Table(title=f"prefix cache of {held.hello.pod_name or parsed.endpoint}", show_header=False)
        for name, value in summarise(state, held):
            table.add_row(name, value)
        Console().print(table)
        return 0

    hint = "is it a router? Use `headstart cache verify`, or --endpoint of a pod"
    return client.report_failure(show, parsed.endpoint, not_offered=hint)


class _Shape(NamedTuple):
    num_roots: int
    num_leaves: int
    xor: int


def _shape(held: Held) -> _Shape:
    """First blocks, ends of chains, and the digest of the hashes."""
    parents = set(held.parents.values())
    return _Shape(
        num_roots=sum(1 for parent in held.parents.values() if parent == 0),
        num_leaves=sum(1 for block_hash in held.parents if block_hash not in parents),
        xor=reduce(operator.xor, held.parents, 0),
    )


def json_summary(state: pb.State, held: Held) -> dict[str, object]:
    """For programs: the fields of `State` as numbers, and under `cache` what the snapshot adds. Keys stay as they are.

    Hashes, and so the digest, have 64 bits, which many readers of JSON cannot hold as numbers: it is hexadecimal text.
    """
    fields: dict[str, object] = {
        field.name: getattr(state, field.name) for field in pb.State.DESCRIPTOR.fields if field.name != "features"
    }
    shape = _shape(held)
    cache = {
        "pod_name": held.hello.pod_name,
        "model": held.hello.model,
        "block_size": held.hello.block_size,
        "num_hashes": len(held.parents),
        "num_first_blocks": shape.num_roots,
        "num_chain_ends": shape.num_leaves,
        "digest": f"{shape.xor:016x}",
        "snapshot_epoch": held.hello.epoch,
        "snapshot_seq": held.seq,
    }
    return {"state": fields | {"features": dict(state.features)}, "cache": cache}


def summarise(state: pb.State, held: Held) -> list[tuple[str, str]]:
    """Rows of (name, value) for people: blocks by use, hit rate, chains, digest."""
    shape = _shape(held)
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
        ("first blocks, chain ends", f"{shape.num_roots}, {shape.num_leaves}"),
        ("digest (xor of hashes)", f"{shape.xor:016x}"),
        ("epoch, seq", f"{held.hello.epoch[:8]}, {held.seq}"),
    ]
