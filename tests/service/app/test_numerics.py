"""Pods that answer bit for bit alike say so by one name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from headstart.app.model import open_model
from headstart.app.numerics import numerics_id
from headstart.config import load_settings
from headstart.errors import ConfigError
from headstart_kernels._native import active_isa
from service.model.tiny_models import save_model
from tokenizers import Tokenizer, decoders, models


def test_the_native_name_carries_dtype_instruction_set_and_backend() -> None:
    expected = f"bfloat16/cpu/{active_isa()}/native/headstart-{version('headstart')}"
    assert numerics_id("bfloat16", "cpu", "native") == expected


def test_the_name_of_the_reference_carries_the_version_of_torch() -> None:
    name = numerics_id("float32", "cpu", "reference")
    assert name.startswith("float32/cpu/")
    assert name.endswith(f"/reference/torch-{version('torch')}")


@pytest.mark.parametrize(
    ("wishes", "backend", "dtype"),
    [
        ({}, "native", "quantized"),
        ({"model.dtype": "bfloat16"}, "native", "bfloat16"),
        ({"attention_backend": "reference"}, "reference", "float32"),
    ],
)
def test_what_is_not_wished_for_on_a_cpu_is_the_fast_choice(wishes: dict[str, str], backend: str, dtype: str) -> None:
    model = open_model(load_settings({"device": "cpu"} | wishes), lambda _stage, _fraction: None)
    assert (model.attention_backend, model.dtype) == (backend, dtype)
    assert model.numerics_id == numerics_id(dtype, "cpu", backend)


def test_a_model_of_plain_numbers_is_served_in_bfloat16(tmp_path: Path) -> None:
    save_model("llama3", tmp_path)
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for wish in ("auto", "quantized"):
        settings = load_settings({"device": "cpu", "model.source": str(tmp_path), "model.dtype": wish})
        assert open_model(settings, lambda _stage, _fraction: None).dtype == "bfloat16"


def test_a_backend_that_cannot_be_had_is_refused_by_the_name_of_its_setting() -> None:
    settings = load_settings({"device": "cuda", "attention_backend": "native"})
    with pytest.raises(ConfigError, match=r"^attention_backend: .*on a CPU"):
        open_model(settings, lambda _stage, _fraction: None)


@pytest.mark.parametrize("number", ["0", "abc", "99999"])
def test_a_number_of_threads_that_cannot_be_is_told_by_its_name_before_weights_are_read(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_THREADS", number)
    stages: list[str] = []
    with pytest.raises(ConfigError, match=f"^HEADSTART_THREADS: must be a number .* '{number}'$"):
        open_model(load_settings({"device": "cpu"}), lambda stage, _: stages.append(stage))
    assert "load weights" not in stages


def test_an_instruction_set_that_is_not_there_is_one_line_and_exit_code_2() -> None:
    served = subprocess.run(
        [sys.executable, "-m", "headstart", "bench", "kernels"],
        env={**os.environ, "HEADSTART_ISA": "sse9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode == 2
    assert served.stderr == (
        "headstart: HEADSTART_ISA: instruction set 'sse9' is unknown: use scalar, avx2, avx512 or avx512_bf16\n"
    )
