"""This engine as a process of a comparison (peer_rows.py). The options are those of `headstart bench serve`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from headstart.cli.bench import serve
from headstart.cli.bench.serve_drive import Client, play
from headstart.cli.bench.serve_workloads import warm_up
from headstart.cli.progress import LoadProgress
from peer_rows import tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    serve.configure(parser)
    parsed = parser.parse_args()
    with LoadProgress() as progress:
        asyncio.run(answer(serve.opener(parsed, progress), serve.plan_of(parsed)))


async def answer(open_client: serve.Opener, plan: serve.Plan) -> None:
    """A row for each line on stdin."""
    client: Client = await open_client()
    token_ids: Sequence[int] = serve.token_ids_for(await client.limits(), plan.workloads)
    for number in range(2):
        await play(client, warm_up(f"{plan.seed}/{number}", token_ids).asks)
    tell({"engine": "headstart"})
    while line := await asyncio.to_thread(sys.stdin.readline):
        workload, seed = line.split()
        tell(await serve.measure_once(client, workload, seed, plan, token_ids))
    await client.close()


if __name__ == "__main__":
    main()
