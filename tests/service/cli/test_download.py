from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headstart.cli.download import PercentLines
from headstart.model.download import MARK
from service.model.hub_stand_in import COMMIT, hub_stand_in

WEIGHTS = "model.safetensors"
NAMES = ["config.json", WEIGHTS, "tokenizer.json"]


def start(folder: Path, endpoint: str, *flags: str, model: str = "lab/tiny") -> subprocess.Popen[str]:
    """The command in a process of its own: the hub library reads its endpoint once, when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(folder.parent / "home"),
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-m", "headstart", "download", model, "--to", str(folder), *flags]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def download(folder: Path, endpoint: str, *flags: str, model: str = "lab/tiny") -> subprocess.CompletedProcess[str]:
    with start(folder, endpoint, *flags, model=model) as process:
        _, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, "", stderr)


def make_model(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text(f"content of {name}\n" * 1000)
    return directory


def seen_by_a_pod(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", *NAMES, "pytorch_model.bin")


def test_a_model_is_put_into_the_folder_and_a_second_call_asks_nobody(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    with hub_stand_in({"lab/tiny": model}) as (endpoint, asked):
        first = download(folder, endpoint)
        num_asked = len(asked)
        second = download(folder, endpoint)
    assert first.returncode == 0, first.stderr
    assert "downloading lab/tiny: 100 %" in first.stderr
    assert seen_by_a_pod(folder) == NAMES
    assert all((folder / name).read_bytes() == (model / name).read_bytes() for name in NAMES)
    assert json.loads((folder / MARK).read_text())["commit"] == COMMIT
    assert second.returncode == 0
    assert "holds lab/tiny already" in second.stderr
    assert len(asked) == num_asked


def test_a_transfer_that_breaks_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    (model / WEIGHTS).write_bytes(os.urandom(11 << 20))  # more than the 10 MiB that the library writes at once
    with hub_stand_in({"lab/tiny": model}, breaks={WEIGHTS: (10 << 20) + 5}) as (endpoint, asked):
        done = download(tmp_path / "tiny", endpoint)
    assert done.returncode == 0, done.stderr
    assert [path for path in asked if path.endswith(f"{WEIGHTS} bytes={10 << 20}-")]
    assert (tmp_path / "tiny" / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()


def test_a_download_that_fails_shows_pods_nothing_and_the_next_keeps_what_was_complete(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    killed = folder / ".headstart-download" / ".cache" / "huggingface" / "download" / "killed.incomplete"
    killed.parent.mkdir(parents=True)
    killed.touch()
    with hub_stand_in({"lab/tiny": model}, withheld={WEIGHTS}) as (endpoint, _):
        failed = download(folder, endpoint)
    assert failed.returncode == 1
    assert "lab/tiny" in failed.stderr
    assert seen_by_a_pod(folder) == []
    assert not killed.exists()
    with hub_stand_in({"lab/tiny": model}) as (endpoint, asked):
        done = download(folder, endpoint)
    assert done.returncode == 0, done.stderr
    assert seen_by_a_pod(folder) == NAMES
    assert {path.rsplit("/", 1)[1] for path in asked if "/resolve/" in path} == {WEIGHTS}


def test_two_downloads_into_one_folder_wait_for_each_other(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    with (
        hub_stand_in({"lab/tiny": model}) as (endpoint, asked),
        (folder / ".headstart-download.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        with start(folder, endpoint) as second:
            assert second.stderr is not None
            assert "waiting for another download" in second.stderr.readline()
            assert asked == []
            fcntl.flock(lock, fcntl.LOCK_UN)
            second.stderr.read()
    assert second.returncode == 0
    assert seen_by_a_pod(folder) == NAMES


def test_a_folder_whose_files_were_lost_is_filled_again(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    with hub_stand_in({"lab/tiny": model}) as (endpoint, _):
        download(folder, endpoint)
        (folder / WEIGHTS).write_bytes(b"half of it")
        again = download(folder, endpoint)
    assert again.returncode == 0, again.stderr
    assert (folder / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()


def test_a_folder_that_holds_another_model_is_left_alone(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    with hub_stand_in({"lab/tiny": model, "lab/other": model}) as (endpoint, _):
        download(folder, endpoint)
        other = download(folder, endpoint, model="lab/other")
        other_revision = download(folder, endpoint, "--revision", "v2")
        by_hand = download(model, endpoint)
    assert other.returncode == other_revision.returncode == by_hand.returncode == 2
    assert "holds lab/tiny at main, not lab/other at main" in other.stderr
    assert "not lab/tiny at v2" in other_revision.stderr
    assert "did not put there" in by_hand.stderr


def test_a_model_without_a_config_or_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    bare = make_model(tmp_path / "bare", WEIGHTS)
    pickled = make_model(tmp_path / "pickled", "config.json", "pytorch_model.bin")
    with hub_stand_in({"lab/bare": bare, "lab/pickled": pickled}) as (endpoint, _):
        without_config = download(tmp_path / "a", endpoint, model="lab/bare")
        without_weights = download(tmp_path / "b", endpoint, model="lab/pickled")
        unknown = download(tmp_path / "c", endpoint, model="lab/unknown")
    assert without_config.returncode == without_weights.returncode == unknown.returncode == 1
    assert "no config.json" in without_config.stderr
    assert "no safetensors weights" in without_weights.stderr
    assert "'lab/unknown'" in unknown.stderr
    assert seen_by_a_pod(tmp_path / "a") == seen_by_a_pod(tmp_path / "b") == []


def test_the_token_comes_from_its_file(model: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    (tmp_path / "empty").touch()
    with hub_stand_in({"lab/tiny": model}, token="hf_secret") as (endpoint, _):
        refused = download(tmp_path / "a", endpoint)
        empty = download(tmp_path / "b", endpoint, "--token-file", str(tmp_path / "empty"))
        taken = download(tmp_path / "c", endpoint, "--token-file", str(token))
    assert refused.returncode == 1
    assert empty.returncode == 2
    assert "--token-file" in empty.stderr
    assert taken.returncode == 0, taken.stderr
    assert "hf_secret" not in taken.stderr + refused.stderr


def test_a_source_that_is_no_hub_id_names_the_argument(tmp_path: Path) -> None:
    done = download(tmp_path / "a", "http://127.0.0.1:9", model="hf://lab/tiny/x")
    assert done.returncode == 2
    assert "source: 'hf://lab/tiny/x' is no Hugging Face id" in done.stderr


def test_progress_is_one_line_each_two_per_cent_whatever_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PercentLines("lab/tiny")
    for fraction in (0.0, 0.005, 0.011, 0.02, 0.01, 0.055, 1.0, 1.0):
        lines.show("download", fraction)
    percents = [line.rsplit(" ", 2)[1] for line in capsys.readouterr().err.splitlines()]
    assert percents == ["0", "2", "5", "100"]
