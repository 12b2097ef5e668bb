"""The pool runs each task of a call once, for any number of threads and callers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from headstart_kernels import _native


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 5, 10_000])
def test_each_task_runs_once(num_threads: int, num_tasks: int) -> None:
    pool = _native.ThreadPool(num_threads)
    assert pool.size == num_threads
    assert pool.count_tasks(num_tasks) == [1] * num_tasks


def test_calls_that_follow_each_other_closely_do_not_mix() -> None:
    pool = _native.ThreadPool(3)
    for num_tasks in range(400):
        assert pool.count_tasks(num_tasks) == [1] * num_tasks


def test_callers_from_several_threads_wait_for_each_other() -> None:
    pool = _native.ThreadPool(2)
    results: list[list[int]] = []

    def call() -> None:
        results.extend(pool.count_tasks(50) for _ in range(100))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[1] * 50] * 400


def test_a_pool_ends_with_parked_and_with_spinning_workers() -> None:
    for _ in range(50):
        _native.ThreadPool(4)
        _native.ThreadPool(4).count_tasks(3)


@pytest.mark.parametrize("count", [-1, 1025])
def test_a_number_of_threads_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="num_threads: must lie in"):
        _native.ThreadPool(count)


def pool_size_in_a_process(threads: str, cores: str = "") -> subprocess.CompletedProcess[str]:
    code = "from headstart_kernels import _native; print(_native.ThreadPool().size)"
    if cores:
        code = f"import os; os.sched_setaffinity(0, {cores}); " + code
    environment = {**os.environ, "HEADSTART_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_environment_sets_the_number_of_threads() -> None:
    assert pool_size_in_a_process("5").stdout.strip() == "5"


def test_without_it_there_is_a_thread_for_each_core_that_the_process_may_use() -> None:
    assert pool_size_in_a_process("").stdout.strip() == str(_native.usable_cores("/sys/fs/cgroup"))
    one = min(os.sched_getaffinity(0))
    assert pool_size_in_a_process("", f"{{{one}}}").stdout.strip() == "1"


def test_a_bad_number_of_threads_names_the_variable() -> None:
    assert "ValueError: HEADSTART_THREADS: must be a number" in pool_size_in_a_process("many").stderr


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "100001 100000"}, 2),
        ({"cpu.max": "9900000 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu.max": ""}, None),
        ({}, None),
    ],
)
def test_a_container_has_as_many_cores_as_it_gets_time_for(
    tmp_path: Path, files: dict[str, str], granted: int | None
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    allowed = len(os.sched_getaffinity(0))
    assert _native.usable_cores(str(tmp_path)) == min(granted or allowed, allowed)
