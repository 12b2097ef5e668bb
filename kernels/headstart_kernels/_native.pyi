"""Types of what our packages call in the compiled kernels (csrc/bindings.cpp); tests call more."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def build_metadata(
    starts: Sequence[int],
    num_tokens: Sequence[int],
    block_tables: npt.NDArray[np.int32],
    table_rows: Sequence[int],
    read_only: Sequence[bool],
    page_size: int,
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """The arrays of AttentionMetadata in the order of its fields. Raises ValueError that names the argument."""

def active_isa() -> str:
    """The instruction set in use: scalar, avx2, avx512 or avx512_bf16. Raises ValueError for a bad HEADSTART_ISA."""

def available_isas() -> list[str]:
    """The instruction sets that this machine has."""

class ThreadPool:
    """csrc/thread_pool.h. 0 threads: all usable cores, or what HEADSTART_THREADS says."""

    def __init__(self, num_threads: int = 0) -> None: ...
    @property
    def size(self) -> int: ...

def read_memory(pool: ThreadPool, memory: npt.NDArray[np.uint8], isa: str = "") -> int:
    """Read it once, shared out over the threads; the bytes read."""

def multiply_registers(pool: ThreadPool, num_rounds: int, isa: str = "") -> int:
    """Multiply and add in registers on all threads; the operations done."""

class HugeArena:
    """Memory of packed weights, in huge pages where there are some. They keep it alive."""

    def __init__(self) -> None: ...

class PackedWeight:
    """csrc/packed_weight.h."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

def pack(arena: HugeArena, rows: npt.NDArray[np.uint8], stored: str, type: str) -> PackedWeight:  # noqa: A002
    """`rows` [n, bytes of a row] as a file stores them, in the type `stored`."""

def pack_blocks(arena: HugeArena, rows: npt.NDArray[np.uint8], stored: str) -> PackedWeight: ...
def gemm(
    pool: ThreadPool, w: PackedWeight, x: npt.NDArray[Any], y: npt.NDArray[np.float32], *, isa: str = ""
) -> None: ...

class AttentionPlan:
    """csrc/attention_plan.h, with the page table that it points into."""

def plan_attention(
    qo_indptr: npt.NDArray[np.int32],
    kv_indptr: npt.NDArray[np.int32],
    kv_indices: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.int32],
    page_size: int,
    num_heads: int,
    num_kv_heads: int,
    num_threads: int,
    shares_prefixes: bool = True,
) -> AttentionPlan: ...
def attention(
    pool: ThreadPool,
    plan: AttentionPlan,
    q: npt.NDArray[np.float32],
    kv: npt.NDArray[Any],
    out: npt.NDArray[np.float32],
    scale: float,
    isa: str = "",
) -> None: ...

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
    def load(self, name: str, layer: int, rows: npt.NDArray[np.uint8], type: str) -> None: ...  # noqa: A002
    def load_blocks(self, name: str, layer: int, rows: npt.NDArray[np.uint8], type: str) -> None: ...  # noqa: A002
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
