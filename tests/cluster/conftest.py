"""The scenes' cluster: `make test-cluster` starts it and says so in CLUSTER_TESTS; nobody else collects them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster import kube

collect_ignore_glob = [] if os.environ.get("CLUSTER_TESTS") else ["test_*.py"]

_MEASURED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line that is printed after the tests."""
    lines = pytestconfig.stash.setdefault(_MEASURED, [])
    return lines.append


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash.get(_MEASURED, []):
        terminalreporter.write_line(f"measured: {line}")


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """One of the module's own, in which pods must be restricted."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    kube.make_namespace(name)
    yield name
    kube.remove_namespace(name)
