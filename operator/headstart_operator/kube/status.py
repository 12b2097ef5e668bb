"""An EnginePool's status, from a survey of its pods: what to say, never when or whether to write it.

Conditions are those of KEP-1623: the time of a transition changes only with the condition's status. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headstart_operator.kube.client import Json
from headstart_operator.pods.survey import PoolSurvey

_MAX_NAMED = 3


class _Verdict(NamedTuple):
    """One condition without its times."""

    kind: str
    status: str
    reason: str
    message: str


def pool_status(survey: PoolSurvey, *, problem: str, item: Json, now: str) -> Json:
    """The whole status of the pool that `item` is. `problem` is why its spec is not followed; `now` is RFC 3339.

    `hitRatio` is None, which removes it, before there was a request.
    """
    generation = int(item["metadata"].get("generation") or 0)
    before = {each.get("type"): each for each in (item.get("status") or {}).get("conditions") or ()}
    verdicts = (_accepted(problem), _ready(survey, problem), _in_sync(survey))
    return {
        "observedGeneration": generation,
        "conditions": [_condition(each, before.get(each.kind) or {}, generation, now) for each in verdicts],
        "pods": {"total": survey.num_total, "ready": survey.num_ready},
        "cachedBlocks": survey.cached_blocks,
        "hitRatio": None if survey.hit_ratio is None else f"{survey.hit_ratio:.2f}",
    }


def some_names(names: Sequence[str]) -> str:
    """A few of them and how many more there are."""
    named = ", ".join(names[:_MAX_NAMED])
    return f"{named} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else named


def troubles(survey: PoolSurvey) -> tuple[tuple[str, str], ...]:
    """What keeps pods from taking requests, or from sharing prefixes with the rest of their pool: reasons and words."""
    refused = f"{some_names(survey.refusing)}: refuse the router's key, operator.pod_key"
    differing = tuple(("PodsDiffer", each) for each in _differences(survey))
    return (("RouterRefused", refused), *differing) if survey.refusing else differing


def _differences(survey: PoolSurvey) -> tuple[str, ...]:
    said = (
        (survey.other_model, "serve another model than spec.model"),
        (
            survey.unknown_root,
            "have a hash root that the router's fleet secret does not give: no prefix is found there",
        ),
        (survey.apart, "differ from most pods in tokenizer or hash root: they share no prefixes with those"),
    )
    return tuple(f"{some_names(names)}: {what}" for names, what in said if names)


def missing_pods(survey: PoolSurvey) -> str:
    """Why a pool has fewer pods than its selector finds, or none at all; "" when it has all of them."""
    if survey.takers:
        some = "some pods" if survey.num_total else "the pods"
        return f"{some} that spec.selector finds are those of {some_names(survey.takers)}, which come first by name"
    return "" if survey.num_total else "spec.selector finds no pods"


def _accepted(problem: str) -> _Verdict:
    if problem:
        return _Verdict("Accepted", "False", "InvalidSpec", problem)
    return _Verdict("Accepted", "True", "Accepted", "the spec is in effect")


def _ready(survey: PoolSurvey, problem: str) -> _Verdict:
    if problem:
        return _Verdict("Ready", "False", "NotAccepted", "the spec is not in effect")
    if not survey.num_total:
        return _Verdict("Ready", "False", "NoPods", missing_pods(survey))
    missing = f"; {missing_pods(survey)}" if survey.takers else ""
    away = f"; no stream from {some_names(survey.unreached)}" if survey.unreached else ""
    counted = f"{survey.num_ready} of {survey.num_total} pods take requests{missing}{away}"
    if not survey.num_ready and survey.refusing:
        return _Verdict("Ready", "False", "RouterRefused", f"{counted}; {troubles(survey)[0][1]}")
    if not survey.num_ready:
        return _Verdict("Ready", "False", "NoReadyPods", counted)
    return _Verdict("Ready", "True", "PodsReady", counted)


def _in_sync(survey: PoolSurvey) -> _Verdict:
    if not survey.num_total:
        return _Verdict("IndexInSync", "Unknown", "NoPods", "there is nothing to know")
    found = troubles(survey)
    if survey.refusing:
        return _Verdict("IndexInSync", "False", *found[0])
    if survey.out_of_step:
        names = some_names(survey.out_of_step)
        return _Verdict("IndexInSync", "False", "AwaitingSnapshot", f"not known exactly: {names}")
    if found:
        return _Verdict("IndexInSync", "False", "PodsDiffer", "; ".join(words for _, words in found))
    return _Verdict("IndexInSync", "True", "InSync", "the index holds what the pods hold")


def _condition(verdict: _Verdict, before: Mapping[str, Any], generation: int, now: str) -> Json:
    is_same = before.get("status") == verdict.status and before.get("lastTransitionTime")
    return {
        "type": verdict.kind,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if is_same else now,
    }
