"""The forward pass of the Llama family in torch, over a flattened batch with paged K/V.

Layer-wise: all K/V of a layer are written before its attention reads, so that rows of one step may share pages that
this very step fills. Every operation treats a token alone or sums in a fixed order (`headstart_kernels.reference`).
Knows nothing of requests. Owns the weights; the K/V storage belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from headstart_kernels.reference import AttentionPlan, run_attention, tiled_linear, write_kv

from headstart.model.config import ModelConfig
from headstart.model.layout import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix, tensor_shapes
from headstart.model.rope import rope_table
from headstart.model.weights import Checkpoint, Progress


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, [out, in]. q, k, v lie in one matrix, and so do gate and up: fewer, larger products."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One step's arrays on the device. `tokens` is padded to a multiple of TILE_TOKENS; the others are not."""

    token_ids: torch.Tensor
    """int64 [padded tokens]."""
    positions: torch.Tensor
    """int64 [padded tokens]."""
    slots: torch.Tensor
    """int64 [tokens]."""
    logit_rows: torch.Tensor
    """int64 [padded logits]: which tokens' logits are wanted."""
    plan: AttentionPlan


class Llama:
    """A loaded model. `max_positions` is the longest context that it will be asked for, in tokens."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
        progress: Progress,
    ) -> None:
        self.config = checkpoint.config
        self.max_positions = max_positions
        load = _Loader(checkpoint, dtype, device, progress)
        self._embedding = load(EMBEDDING)
        self._layers = [_load_layer(self.config, index, load) for index in range(self.config.num_layers)]
        self._norm = load(FINAL_NORM)
        self._lm_head = self._embedding if self.config.tie_embeddings else load(LM_HEAD)
        self._cos, self._sin = (torch.from_numpy(part).to(device) for part in rope_table(self.config, max_positions))

    @torch.inference_mode()
    def forward(self, step: StepTensors, kv_layers: list[torch.Tensor]) -> torch.Tensor:
        """Write the step's K/V into `kv_layers` and give the float32 logits [padded logits, vocab]."""
        hidden = self._embedding[step.token_ids]
        cos, sin = self._cos[step.positions].unsqueeze(1), self._sin[step.positions].unsqueeze(1)
        for layer, kv_layer in zip(self._layers, kv_layers, strict=True):
            attended = self._attend(layer, kv_layer, self._normalise(hidden, layer.input_norm), (cos, sin), step)
            hidden = hidden + tiled_linear(attended, layer.out, layer.out_bias)
            gate, up = tiled_linear(self._normalise(hidden, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + tiled_linear(_gated(gate, up), layer.down)
        wanted = self._normalise(hidden[step.logit_rows], self._norm)
        return tiled_linear(wanted, self._lm_head).float()

    def _attend(
        self,
        layer: _Layer,
        kv_layer: torch.Tensor,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        step: StepTensors,
    ) -> torch.Tensor:
        """[padded tokens, heads * head_dim]; the padding's rows are zero."""
        config, num_tokens = self.config, len(step.slots)
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        qkv = tiled_linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), sum(counts), config.head_dim)
        q, k, v = torch.split(qkv, counts, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._normalise(q, layer.q_norm), self._normalise(k, layer.k_norm)
        q, k = _rotate(q, *rotation), _rotate(k, *rotation)
        write_kv(kv_layer, k[:num_tokens], v[:num_tokens], step.slots)
        out = torch.zeros_like(q)
        out[:num_tokens] = run_attention(q[:num_tokens], kv_layer, step.plan, config.head_dim**-0.5)
        return out.view(len(hidden), -1)

    def _normalise(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm over the last dimension, in float32 (Zhang and Sennrich, 2019)."""
        wide = x.float()
        size = torch.sqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return weight * (wide / size).to(x.dtype)


class _Loader:
    """Reads tensors one by one into the device and type wanted, and tells `progress` how many are done."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, progress: Progress) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total = len(tensor_shapes(checkpoint.config))
        self._done = 0

    def __call__(self, *names: str) -> torch.Tensor:
        """The tensors `names`, stacked along the first dimension."""
        parts = [torch.from_numpy(self._checkpoint.tensor(name)).to(self._device, self._dtype) for name in names]
        self._done += len(names)
        self._progress("load weights", self._done / self._total)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _load_layer(config: ModelConfig, index: int, load: Callable[..., torch.Tensor]) -> _Layer:
    prefix = layer_prefix(index)
    qkv = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
    return _Layer(
        input_norm=load(prefix + "input_layernorm.weight"),
        qkv=load(*(f"{name}.weight" for name in qkv)),
        qkv_bias=load(*(f"{name}.bias" for name in qkv)) if config.qkv_bias else None,
        q_norm=load(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=load(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
        out=load(prefix + "self_attn.o_proj.weight"),
        out_bias=load(prefix + "self_attn.o_proj.bias") if config.out_bias else None,
        post_norm=load(prefix + "post_attention_layernorm.weight"),
        gate_up=load(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"),
        down=load(prefix + "mlp.down_proj.weight"),
    )


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + half) of every head. x [tokens, heads, head_dim], cos and sin [tokens, 1, half]."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. Spelt with `exp`, because torch's own silu differs in the last bit by an element's place."""
    wide = gate.float().contiguous()
    return (wide / (1.0 + torch.exp(-wide)) * up.float()).to(gate.dtype)
