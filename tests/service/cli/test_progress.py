"""What a start tells on stderr when nobody looks on from a terminal."""

from __future__ import annotations

import json
import logging

import pytest
from headstart.cli.progress import LoadProgress, teller
from headstart.telemetry.logs import set_up_logging


def test_each_stage_is_one_line_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadProgress() as progress:
        for fraction in (0.0, 0.5, 1.0):
            progress.show("load weights", fraction)
        progress.show("self-test", 0.0)
    assert capsys.readouterr().err == "headstart: load weights\nheadstart: self-test\n"


def test_with_a_log_of_json_every_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        set_up_logging(level="info", is_json=True)
        with LoadProgress(is_json=True) as progress:
            progress.show("open", 0.0)
        teller(is_json=True)("ready")
    finally:
        logging.basicConfig(level=level, handlers=before, force=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["open", "ready"]
