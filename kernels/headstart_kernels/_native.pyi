"""Types of what our packages call in the compiled kernels (csrc/bindings.cpp); tests and benchmarks call more."""

from typing import Any

import numpy as np
import numpy.typing as npt

def active_isa() -> str:
    """The instruction set in use: scalar, avx2, avx512 or avx512_bf16. Raises ValueError for a bad HEADSTART_ISA."""

class Decoder:
    """csrc/decoder.h. Every error is a ValueError that begins with the name of the argument."""

    def __init__(
        self,
        *,
        sizes: dict[str, int],
        rms_norm_eps: float,
        is_bf16: bool,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        num_threads: int = 0,
        isa: str = "",
    ) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def load(self, name: str, layer: int, values: npt.NDArray[np.float32]) -> None: ...
    def load_blocks(self, name: str, layer: int, rows: npt.NDArray[np.uint8], block_type: str) -> None: ...
    def check_complete(self) -> None: ...
    def kv_layer(self, layer: int) -> npt.NDArray[Any]: ...
    def step(
        self,
        *,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int64],
        qo_indptr: npt.NDArray[np.int32],
        kv_indptr: npt.NDArray[np.int32],
        kv_indices: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        logit_rows: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
    ) -> None: ...
