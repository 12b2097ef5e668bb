"""A pytest plugin: the tests use the kernels built in the folder SANITIZED_NATIVE instead of the installed ones."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import headstart_kernels

NAME = "headstart_kernels._native"
[path] = Path(os.environ["SANITIZED_NATIVE"]).glob("_native*.so")
spec = importlib.util.spec_from_file_location(NAME, path)
assert spec is not None
assert spec.loader is not None
sys.modules[NAME] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[NAME])
headstart_kernels._native = sys.modules[NAME]  # type: ignore[attr-defined]
