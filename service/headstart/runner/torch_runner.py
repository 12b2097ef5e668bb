"""The forward pass of a real model in torch, as `ModelRunner` wants it: numpy in, numpy out.

Owns the model and the K/V storage; only `forward` writes to either. Called from one thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from headstart_kernels.metadata import AttentionMetadata, IntArray, validate_metadata
from headstart_kernels.reference import TILE_TOKENS, plan_attention

from headstart.errors import ModelError
from headstart.model.kv import kv_layer_shape
from headstart.model.llama import Llama, StepTensors
from headstart.model.weights import Checkpoint, Progress, no_progress

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def cuda_problem() -> str:
    """Why this PyTorch cannot compute on a GPU here; empty when it can."""
    if torch.version.cuda is None:
        return "the installed PyTorch is built for CPUs only"
    return "" if torch.cuda.is_available() else "PyTorch finds no GPU or no driver for it"


def cuda_free_bytes() -> int:
    """Memory of the current GPU that nobody uses."""
    free, _ = torch.cuda.mem_get_info()
    return int(free)


class TorchForward:
    """`num_blocks` counts usable blocks; the storage has one page more, page 0, which stays zero.

    `dtype` is "float32" or "bfloat16", for weights and K/V alike. Raises ModelError for another.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        block_size: int,
        dtype: str = "float32",
        device: str = "cpu",
        progress: Progress = no_progress,
    ) -> None:
        if dtype not in _DTYPES:
            raise ModelError(f"dtype {dtype!r} is not served: use one of {', '.join(_DTYPES)}")
        config = checkpoint.config
        self.vocab_size = config.vocab_size
        self.num_pages = num_blocks + 1
        self.block_size = block_size
        self._device = torch.device(device)
        self._model = Llama(
            checkpoint,
            dtype=_DTYPES[dtype],
            device=self._device,
            max_positions=min(config.context_length, num_blocks * block_size),
            progress=progress,
        )
        shape = kv_layer_shape(config, num_blocks=num_blocks, block_size=block_size)
        self.kv_layers = [
            torch.zeros(shape, dtype=_DTYPES[dtype], device=self._device) for _ in range(config.num_layers)
        ]

    def forward(
        self, token_ids: IntArray, metadata: AttentionMetadata, logit_rows: IntArray
    ) -> npt.NDArray[np.float32]:
        """Write K/V of `token_ids` [tokens] and return the logits [n, vocab] of the tokens `logit_rows` [n].

        Raises ValueError that names the argument when the batch does not fit together.
        """
        self._check(token_ids, metadata, logit_rows)
        if not token_ids.size:
            return np.empty((0, self.vocab_size), np.float32)
        step = StepTensors(
            token_ids=self._padded(token_ids),
            positions=self._padded(metadata.positions),
            slots=torch.as_tensor(metadata.slots, device=self._device),
            logit_rows=self._padded(logit_rows),
            plan=plan_attention(metadata, num_kv_heads=self._model.config.num_kv_heads, device=self._device),
        )
        logits = self._model.forward(step, self.kv_layers)
        return logits[: logit_rows.size].cpu().numpy()

    def _check(self, token_ids: IntArray, metadata: AttentionMetadata, logit_rows: IntArray) -> None:
        validate_metadata(metadata, self.num_pages)
        if metadata.page_size != self.block_size:
            raise ValueError(f"page_size: must be {self.block_size}, is {metadata.page_size}")
        if token_ids.shape != metadata.positions.shape:
            raise ValueError(f"token_ids: {token_ids.size} tokens, the metadata has {metadata.num_tokens}")
        for name, array, limit in (
            ("token_ids", token_ids, self.vocab_size),
            ("logit_rows", logit_rows, metadata.num_tokens),
            ("positions", metadata.positions, self._model.max_positions),
        ):
            if array.size and not 0 <= array.min() <= array.max() < limit:
                raise ValueError(f"{name}: must lie in [0, {limit})")

    def _padded(self, array: IntArray) -> torch.Tensor:
        """On the device as int64, filled up with zeros to a multiple of TILE_TOKENS."""
        padded = np.zeros(-(-array.size // TILE_TOKENS) * TILE_TOKENS, np.int64)
        padded[: array.size] = array
        return torch.as_tensor(padded, device=self._device)
