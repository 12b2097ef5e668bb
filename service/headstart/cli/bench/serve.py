"""`headstart bench serve`: the workloads W1 to W5 on an engine in this process, a gRPC endpoint or an HTTP server.

In this process nothing but the engine runs: no sockets, no messages. The same workloads through `--endpoint` or
`--http` then tell what serving costs. The JSON line has each workload's medians; `startup` is of this process only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from headstart.cli.bench.output import print_result
from headstart.cli.bench.serve_drive import Client, ModelLimits, play
from headstart.cli.bench.serve_load import CpuMeter, peak_rss_mb, process_age_s
from headstart.cli.bench.serve_metrics import Row, check_complete, median_row, summarize
from headstart.cli.bench.serve_workloads import DEFAULT_TOKEN_IDS, WORKLOADS, Ask, build, longest_request, warm_up
from headstart.cli.client import access_from, add_access_flags, report_failure
from headstart.cli.flags import add_settings_flags, settings_from
from headstart.cli.progress import LoadProgress
from headstart.cli.values import MAX_INT32, endpoint, whole
from headstart.config import list_settings
from headstart.errors import ConfigError, UnavailableError

_ENGINE_SECTIONS = frozenset(
    {"model", "device", "attention_backend", "deterministic", "cache", "scheduler", "runner", "speculation"}
)
_NUM_WARM_UPS = 2
_MAX_WAIT_S = 3600
_TLS_FLAGS = ("tls", "ca_file", "cert_file", "key_file", "tls_server_name")
Opener = Callable[[], Awaitable[Client]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Workloads: " + "; ".join(f"{name}: {title}" for name, title in WORKLOADS.items()) + "."
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--endpoint", type=endpoint, help="host:port of a gRPC server, instead of an engine here.")
    where.add_argument(
        "--http",
        type=_url,
        metavar="URL",
        help="An OpenAI-compatible server, such as http://host:8000. Given up after 60 s in which it sends nothing.",
    )
    parser.add_argument(
        "--workloads",
        type=workload_names,
        default=list(WORKLOADS),
        metavar="W1,W4,...",
        help="W4 is W4c and W4w [all].",
    )
    parser.add_argument("--reps", type=whole(1, 1000), default=3, help="Medians of so many repetitions [3].")
    parser.add_argument("--seed", help="Draw the prompts from this word or number [anew each time].")
    parser.add_argument(
        "--server-pid",
        type=whole(1, MAX_INT32),
        action="append",
        default=[],
        metavar="PID",
        help="A server's process on this machine: its processor time is not others', its memory is told; repeatable.",
    )
    parser.add_argument(
        "--wait-quiet",
        type=whole(0, _MAX_WAIT_S),
        default=0,
        metavar="SECONDS",
        help="Before each repetition wait at most so long for other processes to calm down [0].",
    )
    add_access_flags(parser)
    add_settings_flags(parser, sections=_ENGINE_SECTIONS)


class Plan(NamedTuple):
    """What to run. `pids` are the processes whose memory is told, `server_pids` those next to this one."""

    workloads: Sequence[str]
    num_reps: int
    seed: str
    wait_s: int
    pids: Sequence[int]
    server_pids: Sequence[int]
    is_in_process: bool


def plan_of(parsed: argparse.Namespace) -> Plan:
    is_in_process = parsed.endpoint is None and parsed.http is None
    return Plan(
        workloads=parsed.workloads,
        num_reps=parsed.reps,
        seed=secrets.token_hex(4) if parsed.seed is None else parsed.seed,
        wait_s=parsed.wait_quiet,
        pids=[os.getpid()] if is_in_process else parsed.server_pid,
        server_pids=parsed.server_pid,
        is_in_process=is_in_process,
    )


def run(parsed: argparse.Namespace) -> int:
    _refuse_contradictions(parsed)
    if parsed.endpoint is None:
        return _report_unavailable(parsed)
    return report_failure(lambda: _report_unavailable(parsed), parsed.endpoint)


def _report_unavailable(parsed: argparse.Namespace) -> int:
    try:
        return _measure_and_print(parsed)
    except UnavailableError as error:
        print(f"headstart: {error}", file=sys.stderr)
        return 1


def _measure_and_print(parsed: argparse.Namespace) -> int:
    plan = plan_of(parsed)
    with LoadProgress() as progress:
        result = asyncio.run(measure(opener(parsed, progress), plan, progress))
    rows = {name: row for name, row in result.items() if name in WORKLOADS}
    print_result(
        result,
        title=f"{parsed.endpoint or parsed.http or 'in process'}, medians of {plan.num_reps}",
        columns=("", "TTFT ms", "ITL ms", "decode/s", "prefill/s", "wall s", "others"),
        rows=[_cells(name, row) for name, row in rows.items()],
        note="\n".join(_notes(rows)),
    )
    return 0


def opener(parsed: argparse.Namespace, progress: LoadProgress) -> Opener:
    """How to get the client once the event loop runs. The engine is loaded now: Ctrl-C then ends it at once."""
    if parsed.endpoint is not None or parsed.http is not None:
        access = access_from(parsed)

        async def connect() -> Client:
            from headstart.cli.bench.serve_remote import GrpcClient, HttpClient

            return (
                HttpClient(parsed.http, access.key) if parsed.endpoint is None else GrpcClient(parsed.endpoint, access)
            )

        return connect
    settings = settings_from(parsed)
    from headstart.app.assembly import assemble
    from headstart.app.model import open_model
    from headstart.cli.bench.serve_engine import EngineClient

    assembly = assemble(settings, open_model(settings, progress.show))

    async def start() -> Client:
        engine = EngineClient(assembly)
        await engine.start()
        return engine

    return start


async def measure(open_client: Opener, plan: Plan, progress: LoadProgress) -> dict[str, Row]:
    """Medians by workload, and `startup`. Raises ConfigError for a workload that the server cannot take."""
    result: dict[str, Row] = {}
    client = await open_client()
    try:
        if plan.is_in_process:
            await play(client, [Ask("first", list(DEFAULT_TOKEN_IDS[:16]), 1)])
            result["startup"] = {"process_to_first_token_s": round(process_age_s(), 2)}
        token_ids = token_ids_for(await client.limits(), plan.workloads)
        for number in range(_NUM_WARM_UPS):
            progress.show("warm-up", number / _NUM_WARM_UPS)
            await play(client, warm_up(f"{plan.seed}/{number}", token_ids).asks)
        progress.show("warm-up", 1.0)
        for name in plan.workloads:
            rows = []
            for number in range(plan.num_reps):
                progress.show(name, number / plan.num_reps)
                rows.append(await measure_once(client, name, f"{plan.seed}/{number}", plan, token_ids))
            progress.show(name, 1.0)
            result[name] = median_row(rows)
    finally:
        await client.close()
    return result


async def measure_once(client: Client, workload: str, seed: str, plan: Plan, token_ids: Sequence[int]) -> Row:
    """One repetition, with what else the machine did meanwhile."""
    traffic = build(workload, seed, token_ids)
    for ask in traffic.priming:
        await play(client, [ask])
    meter = CpuMeter(plan.server_pids)
    if plan.wait_s:
        await asyncio.to_thread(meter.wait_until_quiet, plan.wait_s)
    meter.start()
    played = await play(client, traffic.asks)
    row = summarize(played.timelines, start_s=played.start_s, end_s=played.end_s) | meter.read()
    return row | ({"rss_peak_mb": peak_rss_mb(plan.pids)} if plan.pids else {})


def token_ids_for(limits: ModelLimits, workloads: Sequence[str]) -> Sequence[int]:
    """The ids to draw from. Raises ConfigError when a workload's requests are too long."""
    for name in workloads:
        if limits.max_len is not None and longest_request(name) > limits.max_len:
            raise ConfigError(
                f"--workloads: {name} has requests of {longest_request(name)} tokens; {limits.max_len} fit here. "
                "Leave it out, or give the pool more blocks"
            )
    if limits.vocab_size is None or limits.vocab_size >= DEFAULT_TOKEN_IDS.stop:
        return DEFAULT_TOKEN_IDS
    return range(min(DEFAULT_TOKEN_IDS.start, limits.vocab_size // 2), limits.vocab_size)


def _cells(name: str, row: Row) -> tuple[str, ...]:
    return (
        name,
        f"{row['ttft_ms_p50']:.0f}/{row['ttft_ms_p99']:.0f}",
        "-" if row["itl_ms_p50"] is None else f"{row['itl_ms_p50']:.1f}/{row['itl_ms_p99']:.1f}",
        f"{row['decode_tok_s']:.1f}" if row.get("decode_tok_s") else "-",
        f"{row['prefill_tok_s']:.0f}",
        f"{row['wall_s']:.2f}",
        f"{row['cpu_others']:.2f}",
    )


def _notes(rows: dict[str, Row]) -> list[str]:
    notes = [
        "TTFT, ITL: to the first token and between tokens, p50/p99. /s: tokens a second, cached prompt tokens too.",
        "others: cores that other programs used meanwhile; above 0.1 the row is doubtful.",
    ]
    for name, row in rows.items():
        if "long_ttft_ms" in row:
            notes.append(
                f"{name}: the long prompt's first token took {row['long_ttft_ms']:.0f} ms; the decoders' gaps "
                f"meanwhile: {row['decoder_itl_during_ms_p50']:.0f}/{row['decoder_itl_during_ms_p99']:.0f} ms."
            )
        fault = check_complete(row)
        if fault:
            notes.append(f"{name}: {fault}; its figures are worth nothing.")
    return notes


def _refuse_contradictions(parsed: argparse.Namespace) -> None:
    """What is said of an engine in this process must not be ignored when the engine is elsewhere, nor the reverse."""
    if parsed.endpoint is None:
        given_access = [flag for flag in _TLS_FLAGS if getattr(parsed, flag)]
        if given_access:
            raise ConfigError(f"--{given_access[0].replace('_', '-')}: is for --endpoint; leave it out")
    if parsed.endpoint is None and parsed.http is None:
        if parsed.server_pid:
            raise ConfigError("--server-pid: the engine runs in this process; leave it out")
        if parsed.api_key_file is not None:
            raise ConfigError("--api-key-file: is for --endpoint or --http; leave it out")
        return
    where = "--http" if parsed.endpoint is None else "--endpoint"
    given = vars(parsed)
    flags = [setting.flag for setting in list_settings() if given.get(setting.key) is not None]
    flags += ["--secrets-dir"] if parsed.secrets_dir is not None else []
    if flags:
        raise ConfigError(f"{flags[0]}: is for an engine in this process; leave it out with {where}")


def workload_names(text: str) -> list[str]:
    """For argparse: the workloads of a list with commas."""
    chosen: list[str] = []
    for word in text.split(","):
        names = [name for name in WORKLOADS if name == word or (word == "W4" and name in ("W4c", "W4w"))]
        if not names:
            raise argparse.ArgumentTypeError(f"{word!r} is no workload; choose of {', '.join(WORKLOADS)}, W4")
        chosen += [name for name in names if name not in chosen]
    return chosen


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text
