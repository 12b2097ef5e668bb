"""What a pool's status says of what is known of its pods."""

from __future__ import annotations

from typing import Any

import pytest
from headstart_operator.kube.status import pool_status, some_names, troubles
from headstart_operator.pods.survey import PoolSurvey

ITEM: dict[str, Any] = {"metadata": {"name": "chat", "generation": 3}}
WELL = PoolSurvey(num_total=2, num_ready=2, cached_blocks=40, hit_ratio=0.876)


def _conditions(survey: PoolSurvey, *, problem: str = "") -> dict[str, tuple[str, str]]:
    status = pool_status(survey, problem=problem, item=ITEM, now="t1")
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_a_pool_that_works_says_so_in_every_field() -> None:
    status = pool_status(WELL, problem="", item=ITEM, now="t1")
    assert {key: value for key, value in status.items() if key != "conditions"} == {
        "observedGeneration": 3,
        "pods": {"total": 2, "ready": 2},
        "cachedBlocks": 40,
        "hitRatio": "0.88",
    }
    for condition in status["conditions"]:
        assert condition.keys() == {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"}
        assert (condition["status"], condition["observedGeneration"], condition["lastTransitionTime"]) == (
            "True",
            3,
            "t1",
        )
    assert [condition["type"] for condition in status["conditions"]] == ["Accepted", "Ready", "IndexInSync"]


def test_a_pool_that_has_lost_some_of_its_pods_to_another_says_so() -> None:
    status = pool_status(PoolSurvey(num_total=2, num_ready=2, takers=("a",)), problem="", item=ITEM, now="t1")
    (ready,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    taken = "some pods that spec.selector finds are those of a, which come first by name"
    assert (ready["status"], ready["message"]) == ("True", f"2 of 2 pods take requests; {taken}")


def test_why_pods_do_not_talk_is_said_of_a_pool_that_is_not_ready_and_of_one_that_is() -> None:
    unreached = ("b (10.0.0.1:1): UNAVAILABLE: Connection refused",)
    for num_ready, reason in ((0, "NoReadyPods"), (1, "PodsReady")):
        survey = PoolSurvey(num_total=2, num_ready=num_ready, unreached=unreached)
        ready = pool_status(survey, problem="", item=ITEM, now="t1")["conditions"][1]
        said = f"{num_ready} of 2 pods take requests; no stream from {unreached[0]}"
        assert (ready["reason"], ready["message"]) == (reason, said)


def test_before_the_first_request_there_is_no_hit_ratio() -> None:
    assert pool_status(PoolSurvey(), problem="", item=ITEM, now="t1")["hitRatio"] is None


@pytest.mark.parametrize(
    ("survey", "ready", "in_sync"),
    [
        (PoolSurvey(), ("False", "NoPods"), ("Unknown", "NoPods")),
        (PoolSurvey(num_total=2), ("False", "NoReadyPods"), ("True", "InSync")),
        (
            PoolSurvey(num_total=2, num_ready=1, out_of_step=("b",), apart=("a",)),
            ("True", "PodsReady"),
            ("False", "AwaitingSnapshot"),
        ),
        (
            PoolSurvey(num_total=2, out_of_step=("a", "b"), refusing=("a", "b")),
            ("False", "RouterRefused"),
            ("False", "RouterRefused"),
        ),
        (
            PoolSurvey(num_total=2, num_ready=1, out_of_step=("b",), refusing=("b",)),
            ("True", "PodsReady"),
            ("False", "RouterRefused"),
        ),
        (PoolSurvey(num_total=2, num_ready=2, unknown_root=("b",)), ("True", "PodsReady"), ("False", "PodsDiffer")),
        (PoolSurvey(num_total=2, num_ready=1, other_model=("b",)), ("True", "PodsReady"), ("False", "PodsDiffer")),
    ],
)
def test_what_is_wrong_has_a_condition_and_a_reason(
    survey: PoolSurvey, ready: tuple[str, str], in_sync: tuple[str, str]
) -> None:
    assert _conditions(survey) == {"Accepted": ("True", "Accepted"), "Ready": ready, "IndexInSync": in_sync}


def test_a_spec_that_cannot_be_followed_is_not_accepted() -> None:
    found = _conditions(PoolSurvey(), problem="spec.port: 0 is no number from 1 to 65535")
    assert (found["Accepted"], found["Ready"]) == (("False", "InvalidSpec"), ("False", "NotAccepted"))


def test_a_transitions_time_stays_until_the_status_of_the_condition_changes() -> None:
    before = pool_status(WELL, problem="", item=ITEM, now="t1")
    item = ITEM | {"status": before}
    fewer = pool_status(PoolSurvey(num_total=2, num_ready=1, out_of_step=("b",)), problem="", item=item, now="t2")
    times = {each["type"]: each["lastTransitionTime"] for each in fewer["conditions"]}
    assert times == {"Accepted": "t1", "Ready": "t1", "IndexInSync": "t2"}
    assert "1 of 2" in fewer["conditions"][1]["message"]


def test_few_names_are_all_said_and_many_are_counted() -> None:
    assert some_names(("a", "b", "c")) == "a, b, c"
    assert some_names(("a", "b", "c", "d", "e")) == "a, b, c and 2 more"
    assert troubles(WELL) == ()
    ((reason, said),) = troubles(PoolSurvey(apart=("pod-7",)))
    assert (reason, said.startswith("pod-7: ")) == ("PodsDiffer", True)
