"""What a decoder-only model of the Llama family is made of, in numbers, from either of its two kinds of description.

Knows nothing of weights, torch or memory. Values are frozen; whatever this build would compute wrongly is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headstart.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

_MISTRAL_WINDOW = 4096
"""transformers' default for a Mistral config that is silent about its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the rotary frequencies differ from the plain ones.

    linear: divided by `factor`. llama3: long waves divided by `factor`, short ones kept, in between blended. factors:
    each divided by its own number, which is how a GGUF file spells llama3.
    """

    kind: Literal["linear", "llama3", "factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of one model. `head_dim` need not be `hidden_size / num_heads`."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    context_length: int
    tie_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    """Whether the projection after attention has a bias."""
    qk_norm: bool
    """Whether queries and keys are normalised per head before the rotation."""
    dtype: str
    """The weights' own dtype in the words of torch ("bfloat16"), empty when the description does not say."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "context_length",
        ):
            if getattr(self, name) < 1:
                raise ModelError(f"model config: {name} must be at least 1, is {getattr(self, name)}")
        for name in ("rms_norm_eps", "rope_theta"):
            if not 0 < getattr(self, name) < math.inf:
                raise ModelError(f"model config: {name} must be a number above 0, is {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"model config: {self.num_heads} heads do not divide by {self.num_kv_heads} kv heads")
        if self.head_dim % 2:
            raise ModelError(f"model config: head_dim must be even, is {self.head_dim}")


def from_hf(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Read a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

    `generation` is `generation_config.json`: its eos ids are the complete ones. Raises ModelError that names the
    architecture or the key that is not served.
    """
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        names = config.get("architectures") or [family or "none"]
        raise ModelError(f"architecture {names[0]!r} is not served: use one of {', '.join(FAMILIES)}")
    _refuse_hf(config)
    _refuse_window(_hf_window(family, config), _hf_int(config, "max_position_embeddings"))
    theta, scaling = _hf_rope(config)
    num_heads = _hf_int(config, "num_attention_heads")
    hidden_size = _hf_int(config, "hidden_size")
    has_bias = bool(config.get("attention_bias", False))
    eos = (generation or {}).get("eos_token_id")
    return ModelConfig(
        family=family,
        vocab_size=_hf_int(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_hf_int(config, "intermediate_size"),
        num_layers=_hf_int(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden_size // num_heads)),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        context_length=_hf_int(config, "max_position_embeddings"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or has_bias,
        out_bias=has_bias and family != "qwen2",
        qk_norm=family == "qwen3",
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch."),
        bos_token_id=config.get("bos_token_id"),
        eos_token_ids=_ids(config.get("eos_token_id") if eos is None else eos),
    )


def _hf_int(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"config.json: {key} must be a number above 0, is {value!r}")
    return value


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _refuse_hf(config: Mapping[str, Any]) -> None:
    """Refuse switches that would change the result and are not implemented."""
    served = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0, "quantization_config": None}
    for key, value in served.items():
        if config.get(key, value) != value:
            raise ModelError(f"config.json: {key} = {config[key]!r} is not served, only {value!r}")


def _hf_window(family: str, config: Mapping[str, Any]) -> int | None:
    """Tokens of the sliding window, None when every layer sees all of them."""
    window: int | None = config.get("sliding_window", _MISTRAL_WINDOW if family == "mistral" else None)
    has_switch = "use_sliding_window" in config or family.startswith("qwen")
    return None if has_switch and not config.get("use_sliding_window") else window


def _refuse_window(window: int | None, context_length: int) -> None:
    if window and window < context_length:
        raise ModelError(
            f"a sliding window of {window} tokens is not served: use a model without one, or set its context "
            f"length ({context_length}) to the window"
        )


def _hf_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """theta and scaling: `rope_parameters` holds both in transformers 5, two keys do before."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("config.json: a partial_rotary_factor is not served")
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling(kind="linear", factor=float(parameters["factor"]))
        if kind == "llama3":
            return theta, RopeScaling(
                kind="llama3",
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_context=int(parameters["original_max_position_embeddings"]),
            )
    except KeyError as error:
        raise ModelError(f"config.json: rope scaling {kind!r} lacks {error}") from error
    raise ModelError(f"config.json: rope scaling {kind!r} is not served: use default, linear or llama3")


def from_gguf(metadata: Mapping[str, Any]) -> ModelConfig:
    """Read the key-value part of a GGUF file (a Mistral file calls itself "llama" there).

    What only the tensors tell (untied embeddings, per-frequency rope factors) is left at its default here; the
    checkpoint fills it in. Raises ModelError that names the architecture or the key.
    """
    arch = str(metadata.get("general.architecture", "none"))
    if arch not in ("llama", "qwen2", "qwen3"):
        raise ModelError(f"architecture {arch!r} is not served: use one of {', '.join(FAMILIES)}")

    def number(key: str, default: float | None = None) -> float:
        value = metadata.get(f"{arch}.{key}", default)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"GGUF metadata: {arch}.{key} must be a number, is {value!r}")
        return value

    num_heads = int(number("attention.head_count"))
    if num_heads < 1:
        raise ModelError(f"GGUF metadata: {arch}.attention.head_count must be at least 1, is {num_heads}")
    hidden_size = int(number("embedding_length"))
    head_dim = int(number("attention.key_length", hidden_size // num_heads))
    context_length = int(number("context_length"))
    for key in ("rope.dimension_count", "attention.value_length"):
        if number(key, head_dim) != head_dim:
            raise ModelError(f"GGUF metadata: {arch}.{key} must equal the head size {head_dim}")
    if number("expert_count", 0):
        raise ModelError(f"GGUF metadata: {arch}.expert_count: mixtures of experts are not served")
    _refuse_window(int(number("attention.sliding_window", 0)), context_length)
    vocab_size = number("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    eos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return ModelConfig(
        family=arch,
        vocab_size=int(vocab_size),
        hidden_size=hidden_size,
        intermediate_size=int(number("feed_forward_length")),
        num_layers=int(number("block_count")),
        num_heads=num_heads,
        num_kv_heads=int(number("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        rms_norm_eps=_shortest(number("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(number("rope.freq_base", 10000.0)),
        rope_scaling=_gguf_scaling(metadata, arch),
        context_length=context_length,
        tie_embeddings=True,
        qkv_bias=arch == "qwen2",
        out_bias=False,
        qk_norm=arch == "qwen3",
        dtype="",
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(sorted({int(i) for i in eos if i is not None})),
    )


def _shortest(value: float) -> float:
    """The decimal number that was meant: 1e-05 where the file's float32 says 9.999999747e-06."""
    return float(str(np.float32(value)))


def _gguf_scaling(metadata: Mapping[str, Any], arch: str) -> RopeScaling | None:
    kind = str(metadata.get(f"{arch}.rope.scaling.type", "none"))
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=float(metadata[f"{arch}.rope.scaling.factor"]))
    raise ModelError(f"GGUF metadata: rope scaling {kind!r} is not served: use none or linear")
