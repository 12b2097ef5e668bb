import importlib.util

import pytest
from headstart_kernels.select import select_backend


@pytest.mark.parametrize(("device", "backend"), [("cpu", "native"), ("cuda", "reference")])
def test_auto_is_the_fastest_that_the_device_has(device: str, backend: str) -> None:
    assert select_backend("auto", device=device) == backend


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_backend_that_is_asked_for_is_taken(backend: str) -> None:
    assert select_backend(backend, device="cpu") == backend


def test_a_backend_that_is_not_built_in_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="flashinfer"):
        select_backend("flashinfer", device="cpu")


def test_the_native_backend_is_refused_on_a_gpu() -> None:
    with pytest.raises(ValueError, match="on a CPU, not on cuda"):
        select_backend("native", device="cuda")


@pytest.mark.parametrize(
    ("backend", "advice"), [("native", r"C\+\+ compiler"), ("reference", r"pip install 'headstart\[reference\]'")]
)
def test_a_backend_that_is_not_installed_is_refused_and_says_how_to_get_it(
    backend: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ValueError, match=f"^'{backend}' is not installed: .*{advice}"):
        select_backend(backend, device="cpu")
