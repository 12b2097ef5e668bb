"""The angles of the rotary embedding. Arithmetic only, in numpy, for whatever computes the model. Holds no state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstart.model.config import ModelConfig

Floats = npt.NDArray[np.float32]


def rope_frequencies(config: ModelConfig) -> Floats:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2] (Su et al., RoFormer, 2021).

    The scaling of Llama 3 follows its reference implementation: waves longer than the original context divided by
    `low_freq_factor` slow down by `factor`, those shorter than it divided by `high_freq_factor` stay, the rest blends.
    """
    exponents = np.arange(0, config.head_dim, 2).astype(np.float32) / np.float32(config.head_dim)
    plain: Floats = np.float32(1.0) / np.float32(config.rope_theta) ** exponents
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return (plain / np.float32(scaling.factor)).astype(np.float32)
    if scaling.kind == "factors":
        return (plain / np.array(scaling.factors, np.float32)).astype(np.float32)
    turns = scaling.original_context * plain / np.float32(2 * np.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clip(0.0, 1.0)
    scaled: Floats = (1 - blend) * plain / np.float32(scaling.factor) + blend * plain
    return scaled.astype(np.float32)


def rope_table(config: ModelConfig, num_positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines of every position's angles, float32 [num_positions, head_dim / 2] each."""
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * rope_frequencies(config)
    return np.cos(angles), np.sin(angles)
