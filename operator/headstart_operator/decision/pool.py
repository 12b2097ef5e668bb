"""An EnginePool as routing needs it: which pods, and how requests for them are treated. Values, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headstart_operator.decision.admission import QueueLimits
from headstart_operator.decision.score import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`selector` is a label selector and `port` the gRPC port of the pods that it finds.

    `model` is what they are to serve, "" for whatever they do. `limits` bound what waits for that model, on top of the
    operator's own bounds.
    """

    name: str
    selector: str
    port: int
    model: str = ""
    policy: Policy = Policy.PREFIX
    limits: QueueLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """What is in effect now. `by_name` may change at any time; `policy` is for pods of no pool."""

    by_name: Mapping[str, Pool] = field(default_factory=dict)
    policy: Policy = Policy.PREFIX

    def policy_of(self, name: str) -> Policy:
        """Of the pods of this pool."""
        pool = self.by_name.get(name)
        return self.policy if pool is None else pool.policy

    def limits_of(self, name: str) -> QueueLimits | None:
        """Of what waits for the pods of this pool."""
        pool = self.by_name.get(name)
        return None if pool is None else pool.limits
