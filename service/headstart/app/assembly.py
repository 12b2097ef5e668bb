"""Joins the parts of a pod for one set of settings: pool, scheduler, runner, engine, and what it says of itself.

Nothing runs yet when it returns. It decides the defaults that depend on the model and the device.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from headstart.app.model import ServedModel
from headstart.cache.log import EventLog
from headstart.cache.manager import BlockManager
from headstart.cache.pool import BlockPool
from headstart.config import Settings
from headstart.contract.identity import PodIdentity
from headstart.contract.prefix import hash_root
from headstart.contract.request import GenerateSpec
from headstart.edge.limits import Limits
from headstart.edge.names import pod_name, pod_uid
from headstart.engine.decoder import Decoder
from headstart.engine.handle import EngineHandle
from headstart.engine.loop import EngineLoop, EngineParts
from headstart.engine.trace import StepTracer
from headstart.errors import ConfigError
from headstart.scheduler.limits import SchedulerLimits
from headstart.scheduler.scheduler import Scheduler
from headstart.text.chat import reads_tools
from headstart.text.detokenizer import StreamDecoder
from headstart.text.tokenizer import Tokenizer

_CPU_PREFILL_CAP = 128

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """An engine that has not started, and what the services in front of it need to know."""

    engine: EngineHandle
    identity: PodIdentity
    limits: Limits
    hash_root: bytes
    tokenizer: Tokenizer | None


def assemble(settings: Settings, model: ServedModel, *, is_tracing: bool = False) -> Assembly:
    """Build everything around a model. With `is_tracing` the engine keeps a trace of its steps. Raises ConfigError."""
    root = hash_root(_root_fields(settings, model), settings.cache.hash_seed.get_secret_value().encode())
    log = EventLog()
    identity = _identity(settings, model, epoch=log.epoch, root=root)
    pool = BlockPool(model.num_blocks, log)
    manager = BlockManager(
        pool,
        block_size=settings.cache.block_size,
        root=root,
        enable_caching=settings.cache.enable_prefix_caching,
    )
    parts = EngineParts(
        scheduler=_scheduler(settings, model, manager),
        runner=model.runner,
        decoder=Decoder(_stream_decoders(model.tokenizer)),
        log=log,
        tracer=StepTracer() if is_tracing else None,
    )
    engine = EngineHandle(
        EngineLoop(parts),
        max_queued_requests=settings.limits.max_queued_requests,
        max_queued_tokens=settings.limits.max_queued_tokens,
        event_buffer=settings.cache.event_buffer,
    )
    _log_effective_state(identity, model)
    return Assembly(
        engine=engine,
        identity=identity,
        limits=_limits(settings, model),
        hash_root=root,
        tokenizer=model.tokenizer,
    )


def warm_up_spec(assembly: Assembly) -> GenerateSpec:
    """The self-test: one token after a prompt too short to fill a block, so that nothing of it stays cached.

    It asks for prompt logprobs, so that it does not read the cache and the hit rate counts real requests only.
    """
    length = max(1, min(assembly.identity.block_size, assembly.limits.max_len) - 1)
    token_id = min(100, assembly.limits.vocab_size - 1)
    return GenerateSpec(
        request_id="warm-up", prompt_token_ids=(token_id,) * length, max_tokens=1, prompt_logprobs=0, ignore_eos=True
    )


def _prefill_cap(settings: Settings, model: ServedModel) -> int:
    chosen = settings.scheduler
    if chosen.long_prefill_token_threshold is not None:
        return chosen.long_prefill_token_threshold
    return max(1, chosen.max_num_batched_tokens // 4) if model.device == "cuda" else _CPU_PREFILL_CAP


def _scheduler(settings: Settings, model: ServedModel, manager: BlockManager) -> Scheduler:
    chosen = settings.scheduler
    limits = SchedulerLimits(
        max_num_batched_tokens=chosen.max_num_batched_tokens,
        max_num_seqs=chosen.max_num_seqs,
        max_len=model.max_len,
        long_prefill_token_threshold=_prefill_cap(settings, model),
        attention_span=model.attention_span,
        max_partial_prefills=chosen.max_partial_prefills,
        policy=chosen.policy,
        watermark=chosen.watermark,
    )
    return Scheduler(manager, limits, eos_token_ids=model.eos_token_ids)


def _stream_decoders(tokenizer: Tokenizer | None) -> Callable[[GenerateSpec], StreamDecoder] | None:
    if tokenizer is None:
        return None

    def make(spec: GenerateSpec) -> StreamDecoder:
        return StreamDecoder(
            tokenizer,
            stop_strings=spec.stop_strings,
            include_stop=spec.include_stop,
            min_tokens=spec.min_tokens,
        )

    return make


def _root_fields(settings: Settings, model: ServedModel) -> dict[str, str]:
    """Everything that changes K/V or token ids. The KV dtype is the model's: this build has no other."""
    return {
        "model": model.fingerprint,
        "dtype": model.dtype,
        "kv_dtype": model.dtype,
        "rope": model.rope,
        "tokenizer": model.tokenizer.fingerprint if model.tokenizer else "none",
        "block_size": str(settings.cache.block_size),
    }


def _limits(settings: Settings, model: ServedModel) -> Limits:
    limits = settings.limits
    return Limits(
        model=model.name,
        max_len=model.max_len,
        vocab_size=model.vocab_size,
        max_token_bytes=model.tokenizer.token_bytes.longest if model.tokenizer else 1,
        max_prompt_bytes=limits.max_prompt_bytes,
        max_n=limits.max_n,
        max_logprobs=limits.max_logprobs,
        max_stop_strings=limits.max_stop_strings,
        has_priorities=settings.scheduler.policy == "priority",
    )


def _identity(settings: Settings, model: ServedModel, *, epoch: str, root: bytes) -> PodIdentity:
    return PodIdentity(
        epoch=epoch,
        pod_name=pod_name(os.environ, port=settings.server.grpc_port),
        pod_uid=pod_uid(os.environ),
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer.fingerprint if model.tokenizer else "",
        hash_root_digest=sha256(root).hexdigest(),
        numerics_id=model.numerics_id,
        block_size=settings.cache.block_size,
        capacity_blocks=model.num_blocks,
        max_num_seqs=settings.scheduler.max_num_seqs,
        context_length=model.max_len,
        vocab_size=model.vocab_size,
        eos_token_ids=tuple(sorted(model.eos_token_ids)),
        features=_features(settings, model),
        hash_root_fields=_root_fields(settings, model),
    )


def _features(settings: Settings, model: ServedModel) -> dict[str, str]:
    """What is in effect, after all defaults are resolved."""
    has_template = model.tokenizer is not None and model.tokenizer.template is not None
    return {
        "runner": settings.runner.kind,
        "device": model.device,
        "dtype": model.dtype,
        "attention_backend": model.attention_backend,
        "prefix_caching": _on(settings.cache.enable_prefix_caching),
        "deterministic": _on(_is_deterministic(settings, model)),
        "text": _on(model.tokenizer is not None),
        "chat": _on(has_template),
        "tools": _on(model.tokenizer is not None and _reads_tools(model.tokenizer)),
        "scheduling_policy": settings.scheduler.policy,
        "max_num_batched_tokens": str(settings.scheduler.max_num_batched_tokens),
        "long_prefill_token_threshold": str(_prefill_cap(settings, model)),
        "max_partial_prefills": str(settings.scheduler.max_partial_prefills),
        "num_drafts": str(settings.speculation.num_drafts),
        "max_n": str(settings.limits.max_n),
        "max_logprobs": str(settings.limits.max_logprobs),
        "max_stop_strings": str(settings.limits.max_stop_strings),
    }


def _reads_tools(tokenizer: Tokenizer) -> bool:
    return reads_tools(tokenizer.tool_template or tokenizer.template)


def _is_deterministic(settings: Settings, model: ServedModel) -> bool:
    """The reference is row-invariant on a CPU whatever is asked; on a GPU this build cannot promise it."""
    if model.device != "cuda":
        return True
    if settings.deterministic:
        raise ConfigError("deterministic: this build promises bit-identical output on a CPU only; use device cpu")
    return False


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _log_effective_state(identity: PodIdentity, model: ServedModel) -> None:
    """Once at the start: what is truly in effect, so that nothing is off in silence."""
    gib = model.num_blocks * model.block_bytes / (1 << 30)
    _LOGGER.info(
        "serving %s: %d KV blocks of %d tokens (%.2f GiB), requests up to %d tokens; %s",
        identity.model,
        model.num_blocks,
        identity.block_size,
        gib,
        model.max_len,
        ", ".join(f"{name} {value}" for name, value in identity.features.items()),
    )
    if identity.features["prefix_caching"] == "off":
        _LOGGER.warning("prefix caching is off: every prompt is computed in full")
