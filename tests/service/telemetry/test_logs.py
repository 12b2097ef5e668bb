"""Log lines for people and for machines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest
from grpc._cython.cygrpc import ExecuteBatchError
from headstart.telemetry.logs import JsonFormatter, set_up_logging

TOO_LATE = "Failed grpc_call_start_batch: 8 with grpc_call_error value: 'GRPC_CALL_ERROR_TOO_MANY_OPERATIONS'"
NOT_SENT = 'Failed "execute_batch": (<grpc._cython.cygrpc.SendStatusFromServerOperation object at 0x7f8a651d1b10>,)'
BY_GRPC = "ExecuteBatchError raised in core by servicer method [/headstart.v1.Inference/Generate]"


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """Gets log lines. What a process sets up for its whole life is taken back after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []  # else they would be closed
    set_up_logging(level="info", is_json=False)
    yield capsys
    root.handlers[:] = handlers
    root.setLevel(level)


def _record(exc_info: object = None) -> logging.LogRecord:
    record = logging.LogRecord("headstart.app", logging.WARNING, "f.py", 1, "%d blocks\nfree", (3,), exc_info)  # type: ignore[arg-type]
    record.created, record.msecs = 0.25, 250.0
    return record


def test_a_json_line_is_one_line_and_carries_the_level_and_the_message() -> None:
    line = JsonFormatter().format(_record())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "headstart.app",
        "message": "3 blocks\nfree",
    }


def test_an_exception_is_a_field_of_its_own() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = JsonFormatter().format(_record(sys.exc_info()))
    assert "ValueError: broken" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("name", "message", "error", "is_told"),
    [
        ("grpc._cython.cygrpc", BY_GRPC, ExecuteBatchError(TOO_LATE), False),
        ("grpc._cython.cygrpc", BY_GRPC, ExecuteBatchError(NOT_SENT), False),
        ("grpc._cython.cygrpc", BY_GRPC, ExecuteBatchError("Failed grpc_call_start_batch: 1"), True),
        ("grpc._cython.cygrpc", "Unexpected [ValueError] raised by servicer method [/x]", ValueError(TOO_LATE), True),
        ("headstart.app", BY_GRPC, ExecuteBatchError(TOO_LATE), True),
    ],
)
def test_a_client_that_left_as_its_stream_ended_is_no_error_of_the_log_and_all_else_is(
    stderr: pytest.CaptureFixture[str], name: str, message: str, error: Exception, is_told: bool
) -> None:
    try:
        raise error
    except Exception:
        logging.getLogger(name).exception(message)
    assert (message in stderr.readouterr().err) is is_told
