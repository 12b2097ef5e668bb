"""Where pods are found when nobody has to ask for them: a fixed list of addresses.

A source of pods yields whole sets, so whoever reads them compares and needs no history; `kube.pods` is the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from headstart_operator.decision.identity import PodRef


class StaticPods:
    """Pods that are always there, by address. Whether they answer is for their streams to tell."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._refs = frozenset(PodRef(uid=each, name=each, address=each) for each in endpoints)

    async def follow(self) -> AsyncGenerator[frozenset[PodRef], None]:
        yield self._refs
        await asyncio.Event().wait()
