"""What a pod serves, opened and described: by a model's checkpoint, or by numbers for a run without weights.

Holds no state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart_kernels.select import NATIVE, REFERENCE, select_backend

from headstart.app.numerics import numerics_id
from headstart.config import Settings
from headstart.errors import ConfigError
from headstart.model.config import ModelConfig
from headstart.model.kv import DTYPE_BYTES, kv_bytes_per_block
from headstart.model.layout import tensor_shapes
from headstart.model.source import resolve_source
from headstart.model.weights import Checkpoint, open_checkpoint
from headstart.runner.model_runner import Forward, ModelRunner
from headstart.runner.runner import Runner
from headstart.runner.simulated_runner import SimulatedRunner
from headstart.text.tokenizer import Tokenizer, load_directory, load_gguf

Progress = Callable[[str, float], None]

# A simulated pod counts its memory as SmolLM2-135M in bfloat16 would.
_SIMULATED_TOKEN_BYTES = 23_040
_SIMULATED_VOCAB_SIZE = 49_152
_SIMULATED_CONTEXT = 131_072
_SIMULATED_FIRST_TOKEN_ID = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as the engine and the front need it. `make_runner` takes the number of usable blocks.

    `tokenizer` is None for a pod that takes token ids only. `block_bytes` are of one block over all layers.
    """

    name: str
    fingerprint: str
    rope: str
    dtype: str
    device: str
    attention_backend: str
    numerics_id: str
    context_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    block_bytes: int
    weight_bytes: int
    tokenizer: Tokenizer | None
    make_runner: Callable[[int], Runner]


def open_model(settings: Settings, progress: Progress) -> ServedModel:
    """Find and read what `settings` name. Raises ModelError or ConfigError; slow, so not for an event loop."""
    progress("find the model", 0.0)
    if settings.runner.kind == "simulated":
        return _simulated(settings)
    checkpoint = open_checkpoint(resolve_source(settings.model.source, progress=progress), progress=progress)
    return _from_checkpoint(settings, checkpoint, progress)


def _from_checkpoint(settings: Settings, checkpoint: Checkpoint, progress: Progress) -> ServedModel:
    device = _device(settings.device)
    backend, dtype = _backend_and_dtype(settings, device)
    progress("tokenizer", 0.0)
    tokenizer = _tokenizer(checkpoint)
    progress("tokenizer", 1.0)
    config = checkpoint.config
    eos_token_ids = tokenizer.eos_token_ids | frozenset(config.eos_token_ids)

    def make_runner(num_blocks: int) -> Runner:
        make_forward = _make_native if backend == NATIVE else partial(_make_reference, device=device)
        forward = make_forward(
            checkpoint, num_blocks=num_blocks, block_size=settings.cache.block_size, dtype=dtype, progress=progress
        )
        return ModelRunner(
            forward,
            block_size=settings.cache.block_size,
            eos_token_ids=eos_token_ids,
            num_drafts=settings.speculation.num_drafts,
        )

    return ServedModel(
        name=settings.model.served_name or _source_name(settings.model.source),
        fingerprint=checkpoint.fingerprint,
        rope=_rope(config),
        dtype=dtype,
        device=device,
        attention_backend=backend,
        numerics_id=numerics_id(dtype, device, backend),
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids,
        block_bytes=kv_bytes_per_block(config, settings.cache.block_size, dtype),
        weight_bytes=sum(math.prod(shape) for shape in tensor_shapes(config).values()) * DTYPE_BYTES[dtype],
        tokenizer=tokenizer,
        make_runner=make_runner,
    )


def _backend_and_dtype(settings: Settings, device: str) -> tuple[str, str]:
    """What the wishes come to on `device`. Raises ConfigError when the backend cannot be had there."""
    try:
        backend = select_backend(settings.attention_backend, device=device)
    except ValueError as error:
        raise ConfigError(f"attention_backend: {error}") from None
    if settings.model.dtype != "auto":
        return backend, settings.model.dtype
    return backend, "float32" if backend == REFERENCE and device == "cpu" else "bfloat16"


# Each forward pass is imported only when it is built: one needs PyTorch, the other the compiled kernels.
def _make_native(checkpoint: Checkpoint, **options: Any) -> Forward:
    from headstart.runner.native_runner import NativeForward

    return NativeForward(checkpoint, **options)


def _make_reference(checkpoint: Checkpoint, **options: Any) -> Forward:
    from headstart.runner.torch_runner import TorchForward

    return TorchForward(checkpoint, **options)


def _simulated(settings: Settings) -> ServedModel:
    if settings.speculation.num_drafts:
        raise ConfigError("speculation.num_drafts: the simulated runner makes no drafts; leave it at 0")

    def make_runner(num_blocks: int) -> Runner:  # noqa: ARG001 nothing is stored
        return SimulatedRunner(
            vocab_size=_SIMULATED_VOCAB_SIZE,
            first_token_id=_SIMULATED_FIRST_TOKEN_ID,
            block_size=settings.cache.block_size,
            step_seconds=settings.runner.step_seconds,
            token_seconds=settings.runner.token_seconds,
            sleep=time.sleep,
        )

    return ServedModel(
        name=settings.model.served_name or "simulated",
        fingerprint="simulated",
        rope="none",
        dtype="none",
        device="none",
        attention_backend="none",
        numerics_id="none/simulated",
        context_length=_SIMULATED_CONTEXT,
        vocab_size=_SIMULATED_VOCAB_SIZE,
        eos_token_ids=frozenset(),
        block_bytes=_SIMULATED_TOKEN_BYTES * settings.cache.block_size,
        weight_bytes=0,
        tokenizer=None,
        make_runner=make_runner,
    )


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.gguf_metadata is not None:
        return load_gguf(checkpoint.gguf_metadata)
    if checkpoint.directory is None:
        raise ConfigError("model.source: it has neither a directory nor GGUF metadata to read a tokenizer from")
    return load_directory(checkpoint.directory)


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    if not Path("/dev/nvidiactl").exists() or find_spec("torch") is None:
        return "cpu"
    from headstart.runner.torch_runner import cuda_problem

    return "cpu" if cuda_problem() else "cuda"


def _source_name(source: str) -> str:
    """A path's last part, without .gguf; a hub id or a built-in name as it is."""
    path = Path(source)
    return path.name.removesuffix(".gguf") if path.exists() else source


def _rope(config: ModelConfig) -> str:
    """All that turns positions into rotations, as one text for the hash root."""
    return f"{config.rope_theta!r}/{config.head_dim}/{config.rope_scaling!r}"
