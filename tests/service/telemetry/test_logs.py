"""Log lines for people and for machines."""

from __future__ import annotations

import json
import logging
import sys

from headstart.telemetry.logs import JsonFormatter


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
