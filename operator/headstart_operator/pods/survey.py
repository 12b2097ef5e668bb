"""How the pods of a pool are, in the numbers and names that its status tells. Reads the fleet; keeps nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headstart_operator.pods.fleet import Fleet
from headstart_operator.pods.pod import FollowedPod


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSurvey:
    """As of one moment. Pods are told by name.

    `num_ready` take requests. `cached_blocks` is summed over pods. `hit_ratio` is of the requests that this process
    routed lately, None before the first. `out_of_step` wait for a snapshot; `other_model` serve another model than the
    pool's; `unknown_root` have a hash root that the fleet secret does not give; `apart` differ from most of their
    pool's pods in tokenizer or hash root, so that they share no prefixes with those; `refusing` do not let the router
    in; `unreached` are others that should serve and do not talk, with address and reason. `digest_resyncs` counts by
    pod. `takers` are other pools that have pods which this one's selector finds too.
    """

    num_total: int = 0
    num_ready: int = 0
    cached_blocks: int = 0
    hit_ratio: float | None = None
    out_of_step: tuple[str, ...] = ()
    other_model: tuple[str, ...] = ()
    unknown_root: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    digest_resyncs: Mapping[str, int] = field(default_factory=dict)
    takers: tuple[str, ...] = ()


def survey_pool(fleet: Fleet, pool: str, *, takers: tuple[str, ...] = ()) -> PoolSurvey:
    """Of one pool, by its name. `takers` are for who follows the selectors to say."""
    pods = sorted((pod for pod in fleet.pods() if pod.ref.pool == pool), key=lambda pod: pod.ref.name)
    known = [pod for pod in pods if pod.group is not None]
    groups = Counter(pod.group for pod in known if pod.fits and pod.root is not None)
    # Equal numbers: the name decides, so that every replica and every reading says the same.
    main = max(groups, key=lambda group: (groups[group], group or ()), default=None)
    return PoolSurvey(
        num_total=len(pods),
        num_ready=sum(pod.is_candidate for pod in pods),
        cached_blocks=sum(fleet.index.digest(pod.subscriber.replica.key).num_hashes for pod in pods),
        hit_ratio=fleet.hit_ratio(pool),
        out_of_step=_names(pod for pod in pods if pod.is_wanted and not pod.subscriber.replica.is_exact),
        other_model=_names(pod for pod in known if not pod.fits),
        unknown_root=_names(pod for pod in known if pod.fits and pod.root is None),
        apart=_names(pod for pod in known if pod.fits and pod.root is not None and pod.group != main),
        refusing=_names(pod for pod in pods if pod.is_wanted and pod.subscriber.is_refused),
        unreached=tuple(
            f"{pod.ref.name} ({pod.ref.address}): {pod.subscriber.failure}"
            for pod in pods
            if pod.is_wanted and not pod.subscriber.is_live and pod.subscriber.failure
        ),
        digest_resyncs={pod.ref.name: pod.subscriber.num_digest_resyncs for pod in pods},
        takers=takers,
    )


def _names(pods: Iterable[FollowedPod]) -> tuple[str, ...]:
    return tuple(pod.ref.name for pod in pods)
