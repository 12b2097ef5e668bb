"""A model's weights as numpy arrays under one set of names, whatever kind of file they come from. Torch-free.

Representation: every tensor is float32 (bfloat16 and float16 widen exactly, quantised ones are unpacked), under its
Hugging Face name, projections as [out, in]. A checkpoint is complete and of the right shapes once it is open.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headstart.errors import ModelError
from headstart.model.config import ModelConfig, RopeScaling, from_gguf, from_hf
from headstart.model.gguf_file import ROPE_FACTORS, GgufFile
from headstart.model.layout import LM_HEAD, tensor_shapes
from headstart.model.safetensors_files import SafetensorsFiles

Progress = Callable[[str, float], None]
"""Told a stage's name and how much of it is done, 0.0 to 1.0."""

FINGERPRINT_BYTES = 4096
"""How much of each tensor goes into the fingerprint."""


def no_progress(stage: str, fraction: float) -> None:
    """Tell nobody."""


class TensorFile(Protocol):
    """Where tensors are stored."""

    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    def dtype(self, name: str) -> str: ...
    def head_bytes(self, name: str, num_bytes: int) -> bytes: ...
    def rows(self, name: str) -> npt.NDArray[np.uint8]: ...
    def tensor(self, name: str) -> npt.NDArray[np.float32]: ...


class Checkpoint:
    """An open model. `directory` is set for a Hugging Face directory, `gguf_metadata` for a GGUF file.

    `fingerprint` is the SHA-256 in hex of the config, every tensor's name, shape and stored type, and the first 4 KiB
    of its bytes. Raises ModelError when a tensor is missing, unknown or of another shape than the config says.
    """

    def __init__(
        self,
        config: ModelConfig,
        file: TensorFile,
        *,
        directory: Path | None = None,
        gguf_metadata: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.directory = directory
        self.gguf_metadata = gguf_metadata
        self._file = file
        found = file.shapes()
        if config.num_layers > len(found):  # before the tensors of so many layers are listed
            raise ModelError(
                f"the config says {config.num_layers} layers, the weights have {len(found)} tensors in all"
            )
        shapes = tensor_shapes(config)
        _check_tensors(shapes, found)
        self.tensor_names = tuple(shapes)
        self.fingerprint = self._hash(shapes)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """One of `tensor_names`, float32. Read anew at each call; nothing is kept."""
        if name not in self.tensor_names:
            raise ModelError(f"tensor {name} is not part of this model")
        return self._file.tensor(name)

    def stored_type(self, name: str) -> str:
        """How one of `tensor_names` is stored, in the words of the file's format ("BF16", "Q4_1")."""
        return self._file.dtype(name)

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor as it is stored, uint8 [rows, bytes of a row], a vector as one row: numbers of `stored_type`."""
        return self._file.rows(name)

    def _hash(self, shapes: dict[str, tuple[int, ...]]) -> str:
        description = json.dumps(dataclasses.asdict(self.config), sort_keys=True)
        digest = hashlib.sha256(description.encode())
        for name in sorted(shapes):
            digest.update(f"\n{name} {shapes[name]} {self._file.dtype(name)} ".encode())
            digest.update(self._file.head_bytes(name, FINGERPRINT_BYTES))
        return digest.hexdigest()


def open_checkpoint(path: Path, progress: Progress = no_progress) -> Checkpoint:
    """Open a Hugging Face directory (config.json and safetensors) or a `.gguf` file.

    Reads the description and checks the tensors; their values are read when asked for. Raises ModelError.
    """
    progress("open", 0.0)
    checkpoint = _open_directory(path) if path.is_dir() else _open_gguf(path)
    progress("open", 1.0)
    return checkpoint


def _open_directory(path: Path) -> Checkpoint:
    if not (path / "config.json").is_file():
        raise ModelError("the model directory has no config.json: point to a directory in the Hugging Face layout")
    config = from_hf(_read_json(path / "config.json"), _read_json(path / "generation_config.json"))
    return Checkpoint(config, SafetensorsFiles(path), directory=path)


def _open_gguf(path: Path) -> Checkpoint:
    if not path.is_file():
        raise ModelError(f"there is no file {path.name}")
    file = GgufFile(path)
    config = from_gguf(file.metadata)
    shapes = file.shapes()
    if LM_HEAD in shapes:
        config = dataclasses.replace(config, tie_embeddings=False)
    if ROPE_FACTORS in shapes:
        if shapes[ROPE_FACTORS] != (config.head_dim // 2,):
            raise ModelError(f"tensor {ROPE_FACTORS} has shape {shapes[ROPE_FACTORS]}, not ({config.head_dim // 2},)")
        scaling = RopeScaling(kind="factors", factors=tuple(file.tensor(ROPE_FACTORS).tolist()))
        config = dataclasses.replace(config, rope_scaling=scaling)
    return Checkpoint(config, file, gguf_metadata=file.metadata)


def _check_tensors(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"tensor {name} is missing from the weights")
        if found[name] != shape:
            raise ModelError(f"tensor {name} has shape {found[name]}, the config says {shape}")
    for name in found:
        if name not in expected and not _is_redundant(name):
            raise ModelError(f"tensor {name} is not known: this model has a part that is not served")


def _is_redundant(name: str) -> bool:
    """Stored by some exporters although it follows from the rest: a copy of tied embeddings, rotary frequencies."""
    return name in (LM_HEAD, ROPE_FACTORS) or name.endswith("rotary_emb.inv_freq")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} holds no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} must hold a JSON object")
    return content
