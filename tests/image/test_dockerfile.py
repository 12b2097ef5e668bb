from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = [
    (line.split()[0], line.split(maxsplit=1)[1])
    for line in re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    if line.strip() and not line.startswith("#")
]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name; the first is its FROM."""
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction in INSTRUCTIONS:
        if instruction[0] == "FROM":
            found[instruction[1].split(" AS ")[1]] = current = []
        if found:
            current.append(instruction)
    return found


def lineage(name: str) -> list[tuple[str, str]]:
    """The instructions that make a stage's image, those of the stages it stands on first."""
    instructions = stages()[name]
    parent = instructions[0][1].split(" AS ")[0]
    return (lineage(parent) if parent in stages() else []) + instructions


def test_the_base_is_an_argument_and_no_image_is_the_latest() -> None:
    assert INSTRUCTIONS[0] == ("ARG", "BASE_IMAGE=debian:bookworm-slim")
    outside = {body[0][1].split(" AS ")[0] for body in stages().values()} - set(stages())
    assert outside == {"${BASE_IMAGE}"}
    assert ":latest" not in (ROOT / "Dockerfile").read_text()


def test_every_image_runs_the_program_itself_as_a_user_without_a_name() -> None:
    for name, command in (("pod-cpu", '["serve"]'), ("pod-gpu", '["serve"]'), ("operator", '["route"]')):
        last = dict(lineage(name))
        assert last["USER"] == "65532:0"
        assert last["ENTRYPOINT"] == '["headstart"]'
        assert last["CMD"] == command


def test_no_image_stands_on_a_stage_that_compiles() -> None:
    for name in ("pod-cpu", "pod-gpu", "operator"):
        runs = [value for keyword, value in lineage(name) if keyword == "RUN"]
        assert len(runs) == 1
        assert "g++" not in runs[0]
        assert "pip" not in runs[0]


def test_nothing_is_built_for_the_machine_that_builds() -> None:
    sources = (ROOT / "Dockerfile").read_text() + (ROOT / "CMakeLists.txt").read_text()
    assert "-march=native" not in sources
    assert "--platform" not in sources


def test_every_wheel_that_is_named_in_the_dockerfile_has_the_version_of_setup() -> None:
    wheel = re.search(r"MODEL_WHEEL=(\S+)", (ROOT / "Dockerfile").read_text())
    assert wheel is not None
    assert f"MODEL_WHEEL := {wheel[1]}" in (ROOT / "Makefile").read_text()


def test_the_version_of_the_images_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall("VERSION=([0-9.]+)", (ROOT / "Dockerfile").read_text())) == {version}


def test_the_context_holds_what_the_stages_copy_and_no_tests() -> None:
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for body in stages().values()
        for keyword, value in body
        if keyword == "COPY" and "--from" not in value
        for source in value.split()[:-1]
    }
    assert all(any(source == name or source.startswith(f"{name}/") for name in admitted) for source in copied)
    assert not any("tests" in name for name in admitted)


def test_the_scripts_of_the_images_are_valid_shell() -> None:
    for script in (ROOT / "helm" / "image" / name for name in ("build", "fill_environment", "stand_in_base")):
        shell = script.read_text().splitlines()[0].split("/")[-1].split()[-1]
        subprocess.run([shell, "-n", script], check=True)


def test_the_gpu_images_pins_begin_where_the_others_end_and_hold_what_the_extra_names() -> None:
    common = _pins("requirements.lock")
    own = _pins("helm/image/requirements-gpu.lock")
    assert common.keys() & own.keys() == set()
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    assert dict(line.split("==") for line in extra).items() <= (common | own).items()


def _pins(path: str) -> dict[str, str]:
    lines = (ROOT / path).read_text().splitlines()
    return dict(line.split(" ;")[0].split("==") for line in lines if "==" in line)
