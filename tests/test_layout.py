"""The shape of the repository: what must be where, how long things may be, and what may never appear."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("service", "kernels", "operator")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
TORCH_FREE = (
    "headstart.scheduler",
    "headstart.cache",
    "headstart.core",
    "headstart.contract",
    "headstart.text",
    "headstart.edge",
    "headstart.engine",
    "headstart.server",
    "headstart.cli",
    "headstart.app",
    "headstart.runner.sampler",
    "headstart.runner.simulated_runner",
    "headstart.model.weights",
)
CODE_FROM_DATA = {
    "pickle", "cPickle", "marshal", "dill", "cloudpickle", "shelve", "joblib",
}  # fmt: skip


def _sources(*roots: str) -> list[Path]:
    paths = [path for root in roots for path in (ROOT / root).rglob("*.py")]
    return sorted(path for path in paths if "_pb2" not in path.name and "__pycache__" not in path.parts)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("folder", ["operator", "tests/operator"])
def test_no_package_may_shadow_the_standard_librarys_operator(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_file_is_longer_than_the_ceiling() -> None:
    lengths = {_shown(path): len(path.read_text().splitlines()) for path in _sources(*SOURCE_ROOTS)}
    assert {path: n for path, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_the_ceiling() -> None:
    long = {
        f"{_shown(path)}:{node.name}": _num_lines(node)
        for path in _sources(*SOURCE_ROOTS)
        for node in _functions(path)
        if _num_lines(node) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_schedule_can_be_read_in_one_sitting() -> None:
    path = ROOT / "service/headstart/scheduler/scheduler.py"
    lengths = {node.name: _num_lines(node) for node in _functions(path)}
    assert lengths["schedule"] <= 60


def test_every_package_but_the_roots_has_an_init_file() -> None:
    folders = {path.parent for path in _sources("service/headstart", "kernels/headstart_kernels")}
    assert sorted(_shown(folder) for folder in folders if not (folder / "__init__.py").exists()) == []


def test_the_architecture_page_names_only_paths_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:service|kernels|operator|tests|helm|\.ci)/[\w./-]*|[\w-]+\.(?:toml|lock|md))`", text)
    assert len(named) >= 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_nothing_turns_data_into_code() -> None:
    """B145: no pickle, eval, exec, unsafe YAML or remote code; weights never through torch.load."""
    found = []
    for path in _sources(*SOURCE_ROOTS):
        for node in ast.walk(ast.parse(path.read_text())):
            found += [f"{_shown(path)}:{node.lineno} {what}" for what in _code_from_data(node)]  # type: ignore[attr-defined]
    assert found == []


def _code_from_data(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] in CODE_FROM_DATA]
    if isinstance(node, ast.ImportFrom):
        return [node.module] if (node.module or "").split(".")[0] in CODE_FROM_DATA and node.module else []
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        keywords = {keyword.arg for keyword in node.keywords}
        forbidden = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load"}
        return [called] if called in forbidden else ["trust_remote_code"] * ("trust_remote_code" in keywords)
    return []


def test_the_rule_against_code_from_data_sees_what_it_forbids() -> None:
    source = "import pickle\nfrom marshal import loads\nyaml.load(x)\neval(x)\nload(x, trust_remote_code=True)\n"
    assert len([w for node in ast.walk(ast.parse(source)) for w in _code_from_data(node)]) == 5


@pytest.mark.parametrize("module", TORCH_FREE)
def test_this_part_imports_without_torch(module: str) -> None:
    program = f"import sys, {module}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=120, check=False).returncode == 0


def test_the_committed_stubs_equal_what_the_protos_generate(tmp_path: Path) -> None:
    protos = sorted(path.relative_to(ROOT / "service") for path in (ROOT / "service").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *map(str, protos)],
        cwd=ROOT / "service",
        check=True,
        timeout=120,
    )
    generated = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2*")}
    assert len(generated) == 3 * len(protos)
    stale = [str(name) for name, text in generated.items() if (ROOT / "service" / name).read_text() != text]
    assert stale == [], "run `make proto`"
