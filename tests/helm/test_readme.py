"""The chart's page: its values are those of the chart, and its commands can be run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.helm import CHART, run_helm

_ROOT = CHART.parents[1]
_GENERATOR = _ROOT / "helm/generate_readme.py"


def _commands(page: Path) -> list[list[str]]:
    """What helm is told to install or upgrade, continued lines joined."""
    text = page.read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^ {4}helm (?:install|upgrade) .*$", text, flags=re.MULTILINE)]


_COMMANDS = [words for page in (CHART / "README.md", _ROOT / "README.md") for words in _commands(page)]


def test_the_values_are_those_of_the_chart() -> None:
    done = subprocess.run(
        [sys.executable, _GENERATOR, "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_value_that_the_page_lacks_is_noticed(tmp_path: Path) -> None:
    for name in ("generate_readme.py", "chart_values.py"):
        (tmp_path / name).write_bytes((_ROOT / "helm" / name).read_bytes())
    chart = tmp_path / "headstart"
    chart.mkdir()
    (chart / "README.md").write_bytes((CHART / "README.md").read_bytes())
    values = (CHART / "values.yaml").read_text()
    (chart / "values.yaml").write_text(values + "\n# New.\nnewKey: 1\n")
    command = [sys.executable, tmp_path / "generate_readme.py"]
    assert subprocess.run([*command, "--check"], capture_output=True, timeout=60, check=False).returncode == 1
    subprocess.run(command, check=True, timeout=60)
    assert "| `newKey` | `1` | New. |" in (chart / "README.md").read_text()
    assert subprocess.run([*command, "--check"], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_a_command_of_the_pages_renders(words: list[str]) -> None:
    _, _, release, chart, *options = words
    left_out = {"--wait", "--create-namespace", "--reuse-values"}
    run_helm("template", release, _ROOT / chart, *(word for word in options if word not in left_out))


def test_pages_have_commands() -> None:
    assert len(_COMMANDS) >= 4
