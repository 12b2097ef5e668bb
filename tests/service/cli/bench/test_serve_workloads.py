"""The workloads of `headstart bench serve`: their shapes, and what their prompts share."""

from __future__ import annotations

import pytest
from headstart.cli.bench.serve_workloads import WORKLOADS, build, longest_request, warm_up


@pytest.mark.parametrize(
    ("workload", "shape"),
    [
        ("W1", {(32, 256): 1}),
        ("W2", {(128, 128): 16}),
        ("W3", {(1024, 1): 8}),
        ("W4c", {(1088, 16): 32}),
        ("W4w", {(1088, 16): 32}),
        ("W5", {(128, 160): 8, (4096, 8): 1}),
    ],
)
def test_each_workload_has_its_published_shape(workload: str, shape: dict[tuple[int, int], int]) -> None:
    lengths = [(len(ask.prompt), ask.num_output) for ask in build(workload, "1").asks]
    assert {length: lengths.count(length) for length in lengths} == shape
    assert longest_request(workload) == max(sum(length) for length in shape)


def test_only_the_long_prompt_comes_late() -> None:
    late = {workload: [ask for ask in build(workload, "1").asks if ask.is_late] for workload in WORKLOADS}
    assert [len(ask.prompt) for ask in late.pop("W5")] == [4096]
    assert not any(late.values())


def test_prompts_share_only_what_w4_shares_on_purpose() -> None:
    for workload in WORKLOADS:
        prompts = [ask.prompt for ask in build(workload, "1").asks]
        shared = 1024 if workload.startswith("W4") else 0
        assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
        assert len({tuple(prompt[shared : shared + 16]) for prompt in prompts}) == len(prompts)


def test_only_the_warm_form_of_w4_is_primed_with_the_prefix() -> None:
    assert build("W4c", "1").priming == []
    warm = build("W4w", "1")
    (prime,) = warm.priming
    assert prime.prompt[:1024] == warm.asks[0].prompt[:1024]
    assert prime.prompt[1024:] not in [ask.prompt[1024:] for ask in warm.asks]


def test_the_seed_and_the_workload_decide_the_prompts_and_nothing_else_does() -> None:
    beginnings = [build(workload, seed).asks[0].prompt[:16] for workload in WORKLOADS for seed in ("1", "2")]
    assert len({tuple(beginning) for beginning in beginnings}) == 2 * len(WORKLOADS)
    assert build("W2", "1") == build("W2", "1")


def test_ids_come_from_the_vocabulary_that_is_given() -> None:
    asks = [*build("W2", "1", range(5, 9)).asks, *warm_up("1", range(5, 9)).asks]
    assert {token_id for ask in asks for token_id in ask.prompt} == {5, 6, 7, 8}


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="workload: 'W9' is not one of W1, "):
        build("W9", "1")
