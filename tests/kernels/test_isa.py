"""Which instruction set serves: the best one, or the one that HEADSTART_ISA forces."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from headstart_kernels import _native

ISAS = ["scalar", "avx2", "avx512", "avx512_bf16"]


def active_isa_in_a_process(forced: str) -> subprocess.CompletedProcess[str]:
    code = "from headstart_kernels import _native; print(_native.active_isa())"
    environment = {**os.environ, "HEADSTART_ISA": forced, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_portable_kernels_serve_on_every_machine() -> None:
    assert _native.available_isas()[0] == "scalar"


@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_set_of_the_machine_can_be_forced(isa: str) -> None:
    assert active_isa_in_a_process(isa).stdout.strip() == isa


def test_the_widest_set_serves_by_default() -> None:
    assert active_isa_in_a_process("").stdout.strip() == _native.available_isas()[-1]


def test_an_unknown_set_is_refused_with_the_names_of_the_known_ones() -> None:
    errors = active_isa_in_a_process("sse9").stderr
    assert "ValueError: HEADSTART_ISA: instruction set 'sse9' is unknown" in errors
    assert all(isa in errors for isa in ISAS)


@pytest.mark.skipif(len(_native.available_isas()) == len(ISAS), reason="this machine has every set")
def test_a_set_that_the_machine_lacks_is_refused_and_the_best_one_named() -> None:
    errors = active_isa_in_a_process(ISAS[-1]).stderr
    assert f"this machine has no {ISAS[-1]}; its best is {_native.available_isas()[-1]}" in errors
