"""What a pod serves, read and described: by a model's checkpoint, or by numbers for a run without weights.

Imports no server: a pod reads its model while it imports the rest.

Holds no state.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart_kernels.select import NATIVE, REFERENCE, select_backend

from headstart.app.numerics import check_native, numerics_id
from headstart.app.sizing import available_memory, check_bookkeeping, count_blocks, fit_max_len, step_bytes
from headstart.config import Settings
from headstart.errors import ConfigError
from headstart.model.config import ModelConfig
from headstart.model.kv import kv_bytes_per_block
from headstart.model.layout import attention_span
from headstart.model.source import resolve_source
from headstart.model.stored_blocks import has_blocks, weight_bytes
from headstart.model.weights import Checkpoint, Progress, open_checkpoint
from headstart.runner.model_runner import Forward, ModelRunner
from headstart.runner.runner import Runner
from headstart.runner.simulated_runner import SimulatedRunner
from headstart.text.tokenizer import Tokenizer, load_directory, load_gguf

# A simulated pod counts its memory as SmolLM2-135M in bfloat16 would.
_SIMULATED_TOKEN_BYTES = 23_040
_SIMULATED_VOCAB_SIZE = 49_152
_SIMULATED_CONTEXT = 131_072
_SIMULATED_FIRST_TOKEN_ID = 17
_GPU_MEMORY_FRACTION = 0.9

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as the engine and the front need it.

    `tokenizer` is None for a pod that takes token ids only. `runner` has `num_blocks` usable blocks, of `block_bytes`
    each over all layers; a request has at most `max_len` tokens, which may be less than `context_length`.
    """

    name: str
    fingerprint: str
    rope: str
    dtype: str
    device: str
    attention_backend: str
    numerics_id: str
    context_length: int
    attention_span: int
    """As `SchedulerLimits` has it."""
    vocab_size: int
    eos_token_ids: frozenset[int]
    block_bytes: int
    num_blocks: int
    max_len: int
    tokenizer: Tokenizer | None
    runner: Runner


def open_model(settings: Settings, progress: Progress) -> ServedModel:
    """Find and read what `settings` name, weights and all: slow. Raises ModelError or ConfigError."""
    progress("find the model", 0.0)
    if settings.runner.kind == "simulated":
        return _simulated(settings)
    checkpoint = open_checkpoint(resolve_source(settings.model.source, progress=progress), progress=progress)
    return _from_checkpoint(settings, checkpoint, progress)


def _from_checkpoint(settings: Settings, checkpoint: Checkpoint, progress: Progress) -> ServedModel:
    config, block_size = checkpoint.config, settings.cache.block_size
    device = _device(settings.device)
    backend = _backend(settings, device)
    dtype = _dtype(settings.model.dtype, checkpoint, backend, device)
    _check_device(device)
    if backend == NATIVE:
        check_native()
    block_bytes = kv_bytes_per_block(config, block_size, dtype)
    other_bytes = weight_bytes(checkpoint, dtype) + step_bytes(config, settings.scheduler.max_num_batched_tokens)
    num_blocks = _count_blocks(settings, device, block_bytes=block_bytes, other_bytes=other_bytes)
    max_len = _fit_max_len(settings, config.context_length, num_blocks)
    # The tokenizer is made beside the weights: most of their time is spent outside the interpreter.
    with ThreadPoolExecutor(1, "tokenizer") as worker:
        reading = worker.submit(_tokenizer, checkpoint)

        def watched(stage: str, fraction: float) -> None:
            if reading.done():
                reading.result()  # one that cannot be read ends the load here, not after the last weight
            progress(stage, fraction)

        make_forward = _make_native if backend == NATIVE else partial(_make_reference, device=device)
        forward = make_forward(checkpoint, num_blocks=num_blocks, block_size=block_size, dtype=dtype, progress=watched)
        tokenizer = reading.result()
    eos_token_ids = tokenizer.eos_token_ids | frozenset(config.eos_token_ids)
    return ServedModel(
        name=settings.model.served_name or _source_name(settings.model.source),
        fingerprint=checkpoint.fingerprint,
        rope=_rope(config),
        dtype=dtype,
        device=device,
        attention_backend=backend,
        numerics_id=numerics_id(dtype, device, backend),
        context_length=config.context_length,
        attention_span=attention_span(config),
        vocab_size=config.vocab_size,
        eos_token_ids=eos_token_ids,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        max_len=max_len,
        tokenizer=tokenizer,
        runner=ModelRunner(
            forward, block_size=block_size, eos_token_ids=eos_token_ids, num_drafts=settings.speculation.num_drafts
        ),
    )


def _count_blocks(settings: Settings, device: str, *, block_bytes: int, other_bytes: int) -> int:
    cache, is_gpu = settings.cache, device == "cuda"
    return count_blocks(
        num_blocks=cache.num_blocks,
        memory_bytes=cache.memory_bytes,
        memory_fraction=cache.memory_fraction or (_GPU_MEMORY_FRACTION if is_gpu else None),
        available_bytes=max(0, (_free_gpu_memory() if is_gpu else available_memory()) - other_bytes),
        block_bytes=block_bytes,
    )


def _fit_max_len(settings: Settings, context_length: int, num_blocks: int) -> int:
    max_len = fit_max_len(
        wanted=settings.model.max_len,
        model_len=context_length,
        num_blocks=num_blocks,
        block_size=settings.cache.block_size,
    )
    if max_len < context_length and settings.model.max_len is None:
        _LOGGER.warning(
            "requests are limited to %d tokens instead of the model's %d: the KV pool holds no longer one",
            max_len,
            context_length,
        )
    return max_len


def _check_device(device: str) -> None:
    """A GPU that cannot be used is told before any weight is read. Raises ConfigError."""
    if device != "cuda":
        return
    # The GPU's forward pass is PyTorch's; a pod on a CPU need not have it.
    from headstart.runner.torch_runner import cuda_problem

    if problem := cuda_problem():
        raise ConfigError(f"device: cuda cannot be used, because {problem}; choose --device cpu")


def _free_gpu_memory() -> int:
    from headstart.runner.torch_runner import cuda_free_bytes

    return cuda_free_bytes()


def _backend(settings: Settings, device: str) -> str:
    """What the wish comes to on `device`. Raises ConfigError when the backend cannot be had there."""
    try:
        return select_backend(settings.attention_backend, device=device)
    except ValueError as error:
        raise ConfigError(f"attention_backend: {error}") from None


def _dtype(wish: str, checkpoint: Checkpoint, backend: str, device: str) -> str:
    """What the wish comes to: for "auto", what is fast without giving up what the file holds."""
    if wish == "auto" and backend == REFERENCE and device == "cpu":
        return "float32"
    if backend == NATIVE and wish in ("auto", "quantized"):
        return "quantized" if has_blocks(checkpoint) else "bfloat16"
    return "bfloat16" if wish == "auto" else wish


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

    block_size = settings.cache.block_size
    block_bytes = _SIMULATED_TOKEN_BYTES * block_size
    num_blocks = settings.cache.num_blocks
    if num_blocks is None:
        num_blocks = _count_blocks(settings, "none", block_bytes=block_bytes, other_bytes=0)
    else:
        check_bookkeeping(num_blocks, available_bytes=available_memory())
    return ServedModel(
        name=settings.model.served_name or "simulated",
        fingerprint="simulated",
        rope="none",
        dtype="none",
        device="none",
        attention_backend="none",
        numerics_id="none/simulated",
        context_length=_SIMULATED_CONTEXT,
        attention_span=0,
        vocab_size=_SIMULATED_VOCAB_SIZE,
        eos_token_ids=frozenset(),
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        max_len=_fit_max_len(settings, _SIMULATED_CONTEXT, num_blocks),
        tokenizer=None,
        runner=SimulatedRunner(
            vocab_size=_SIMULATED_VOCAB_SIZE,
            first_token_id=_SIMULATED_FIRST_TOKEN_ID,
            block_size=block_size,
            step_seconds=settings.runner.step_seconds,
            token_seconds=settings.runner.token_seconds,
            sleep=time.sleep,
        ),
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
