"""Settings: every number and name that a person may choose, with its default, range, flag and meaning.

One frozen tree, read in `app` only; components take the numbers they need. A value comes from the command
line, else the environment (`HEADSTART_`, nesting `__`), else a secret file, else the YAML file, else the
default. A key that does not exist is an error that names the nearest one, wherever it was written. Nothing here
touches a device or a model: defaults that depend on them are None and resolved in `app`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, ByteSize, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from headstart.errors import ConfigError
from headstart.security_settings import AuthSettings, PodTlsSettings, ServerTlsSettings
from headstart.security_settings import option as _option
from headstart.settings_file import read_secret, read_settings_file, secret_files

ENV_PREFIX = "HEADSTART_"
CONFIG_FILE_VARIABLE = "HEADSTART_CONFIG_FILE"
DEFAULT_SECRETS_DIR = "/run/secrets/headstart"
# Ours, but no settings: they must be known before settings are read, or concern the build.
_RESERVED_VARIABLES = frozenset(
    {CONFIG_FILE_VARIABLE, "HEADSTART_API_KEY", "HEADSTART_NATIVE", "HEADSTART_ISA", "HEADSTART_THREADS"}
)
# Kubernetes describes a Service named "headstart" to every pod of its namespace in variables of these forms.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")


class ModelSettings(BaseModel, frozen=True, extra="forbid"):
    source: str = _option(
        "smollm2-135m-instruct",
        "--model",
        "The built-in model's name, a directory with safetensors, a .gguf file, or a Hugging Face id.",
        min_length=1,
    )
    served_name: str | None = _option(
        None, "--served-model-name", "The name that requests use; by default the source's.", min_length=1
    )
    dtype: Literal["auto", "float32", "bfloat16", "quantized"] = _option(
        "auto",
        "--dtype",
        "Of weights and KV. quantized: bfloat16, but a GGUF file's Q8_0, Q4_0 and Q4_1 weights stay as they are. "
        "auto: quantized for such a file on a CPU, else bfloat16; float32 for the reference on a CPU.",
    )
    max_len: int | None = _option(
        None,
        "--max-model-len",
        "Most tokens of a request, output too. By default the model's, but one request must fit the pool.",
        ge=2,
    )


class CacheSettings(BaseModel, frozen=True, extra="forbid"):
    block_size: int = _option(16, "--block-size", "Tokens in a KV block.", ge=1, le=256)
    num_blocks: int | None = _option(
        None,
        "--num-gpu-blocks-override",
        "Usable KV blocks, exactly (vLLM counts its null block too). Overrides both memory keys.",
        ge=1,
    )
    memory_bytes: ByteSize | None = _option(
        None,
        None,
        "Bytes for KV blocks; units such as 512MiB are understood. Overrides memory_fraction.",
        ge=1,
    )
    memory_fraction: float | None = _option(
        None,
        "--gpu-memory-utilization",
        "Share of the memory that weights and steps leave. By default 0.9, but at most 4 GiB.",
        gt=0,
        le=1,
    )
    enable_prefix_caching: bool = _option(
        True, "--enable-prefix-caching", "Reuse the KV blocks of equal prompt beginnings."
    )
    hash_seed: SecretStr = _option(
        SecretStr(""),
        None,
        "Fleet secret in the block hashes: equal on all pods of a pool. Use a secret file.",
    )
    event_buffer: int = _option(
        10_000, None, "Batches of cache events kept for consumers that resume.", ge=1, le=10_000_000
    )


class SchedulerSettings(BaseModel, frozen=True, extra="forbid"):
    max_num_batched_tokens: int = _option(
        2048, "--max-num-batched-tokens", "Token budget of a step.", ge=1, le=1_000_000
    )
    max_num_seqs: int = _option(256, "--max-num-seqs", "Most requests that run at once.", ge=1, le=65_536)
    long_prefill_token_threshold: int | None = _option(
        None,
        "--long-prefill-token-threshold",
        "Most tokens of one prefill in a step while others run or wait, fewer on a long context. By default 128 on a "
        "CPU, budget / 4 on a GPU.",
        ge=1,
    )
    max_partial_prefills: int = _option(
        4, "--max-num-partial-prefills", "Most prompts in a step that do not finish in it.", ge=1, le=65_536
    )
    policy: Literal["fcfs", "priority"] = _option(
        "fcfs", "--scheduling-policy", "fcfs: in order of arrival. priority: smaller numbers first."
    )
    watermark: float = _option(
        0.02, "--watermark", "Share of the blocks that admission leaves free while requests run.", ge=0, lt=1
    )


class LimitSettings(BaseModel, frozen=True, extra="forbid"):
    max_queued_requests: int = _option(1024, None, "Requests that have not started; more are sent away.", ge=1)
    max_queued_tokens: int = _option(
        4_000_000, None, "Prompt tokens of requests that have not started; more are sent away.", ge=1
    )
    max_n: int = _option(8, None, "Most choices of one request.", ge=1, le=128)
    max_logprobs: int = _option(20, None, "Most alternatives reported per token.", ge=0, le=100)
    max_stop_strings: int = _option(16, None, "Most stop strings of one request.", ge=0, le=1024)
    max_prompt_bytes: ByteSize = _option(
        ByteSize(4 << 20),
        None,
        "Upper limit of a prompt's bytes. The context length may lower it: to 16 a token, but not below 64 KiB.",
        ge=1,
        le=32 << 20,
    )


class RunnerSettings(BaseModel, frozen=True, extra="forbid"):
    kind: Literal["model", "simulated"] = _option(
        "model", "--runner", "simulated: no weights, tokens are a pure function of the ids before them."
    )
    step_seconds: float = _option(0.01, None, "Simulated: time of a step.", ge=0, le=60)
    token_seconds: float = _option(0.0001, None, "Simulated: time of a token on top.", ge=0, le=60)


class SpeculationSettings(BaseModel, frozen=True, extra="forbid"):
    num_drafts: int = _option(0, None, "Tokens guessed per step from the request's own text; 0 = off.", ge=0, le=64)


class ServerSettings(BaseModel, frozen=True, extra="forbid"):
    host: str = _option("0.0.0.0", "--host", "Address that the ports are bound on.", min_length=1)
    grpc_port: int = _option(
        50051, "--port", "The gRPC port (vLLM's --port is HTTP). 0 picks a free one.", ge=0, le=65_535
    )
    health_port: int = _option(
        50052, "--health-port", "Plaintext gRPC health for probes. 0 picks a free one.", ge=0, le=65_535
    )
    http_port: int = _option(
        8000,
        "--http-port",
        "OpenAI-compatible HTTP, with /healthz, /readyz, /metrics. 0 picks a free one.",
        ge=0,
        le=65_535,
    )
    metrics_port: int = _option(
        9090, "--metrics-port", "Prometheus metrics alone, at /metrics. 0 picks a free one.", ge=0, le=65_535
    )
    drain_delay_s: float = _option(
        10.0,
        None,
        "After SIGTERM: seconds in which new work is still taken while routers look away.",
        ge=0,
        le=3600,
    )
    drain_timeout_s: float = _option(
        60.0, None, "After that: seconds in which running requests may finish.", ge=0, le=86_400
    )
    tls: ServerTlsSettings = ServerTlsSettings()
    auth: AuthSettings = AuthSettings()


class OperatorSettings(BaseModel, frozen=True, extra="forbid"):
    endpoints: str = _option("", "--endpoints", "host:port,... of the pods, instead of finding them in Kubernetes.")
    namespace: str = _option("", "--namespace", "Where the pods are. By default the operator's own namespace.")
    selector: str = _option(
        "", "--selector", "Label selector of the pods. Without it and without endpoints, EnginePools say which."
    )
    pool_selector: str = _option("", None, "Label selector of the EnginePools; by default all of the namespace.")
    default_pool: str = _option("", None, "EnginePool to make of selector, pod_port and policy if there is none.")
    default_pool_owner: str = _option("", None, "The Deployment that the default pool and the Lease go with.")
    lease: str = _option("headstart-operator", None, "Lease of the one that writes the pools' status.", min_length=1)
    pod_port: int = _option(50051, "--pod-port", "The pods' gRPC port.", ge=1, le=65_535)
    kube_api: str = _option("", "--kube-api", "URL of the Kubernetes API, for tests. By default as in any pod.")
    policy: Literal["prefix", "least-loaded", "round-robin"] = _option(
        "prefix", "--policy", "How pods are chosen. All but prefix are there to compare with."
    )
    max_queued_requests: int = _option(4096, None, "Requests that wait for a pod; more are sent away.", ge=0)
    max_queued_tokens: int = _option(16_000_000, None, "Prompt tokens that wait; more are sent away.", ge=0)
    max_queued_per_tenant: int = _option(4096, None, "Requests of one tenant that wait; more are refused.", ge=0)
    pod_key: SecretStr = _option(SecretStr(""), None, "The router's own key on the pods. Use a secret file.")
    pod_tls: PodTlsSettings = PodTlsSettings()


class TelemetrySettings(BaseModel, frozen=True, extra="forbid"):
    log_level: Literal["debug", "info", "warning", "error"] = _option("info", "--log-level", "Least severe log line.")
    log_format: Literal["text", "json"] = _option("text", "--log-format", "Log lines for people or for machines.")
    otlp_endpoint: str | None = _option(
        None,
        "--otlp-endpoint",
        "Collector for spans and metrics, such as http://collector:4317. The standard OTEL_* variables win over it.",
        min_length=1,
    )
    vllm_metric_names: bool = _option(
        False, None, "Show a pod's metrics also under the vllm:* names that dashboards and autoscalers read."
    )
    capture_content: bool = _option(
        False, None, "Put prompts and answers into spans, for debugging. They are personal data: off by default."
    )


class Settings(BaseSettings):
    """All settings of a pod and of the operator. Built by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=False
    )

    model: ModelSettings = ModelSettings()
    device: Literal["auto", "cpu", "cuda"] = _option("auto", "--device", "auto: cuda if there is one, else cpu.")
    attention_backend: Literal["auto", "native", "reference"] = _option(
        "auto",
        "--attention-backend",
        "native: C++, on a CPU. reference: PyTorch, exact and slow. auto: native on a CPU, else reference.",
    )
    deterministic: bool | None = _option(
        None,
        "--deterministic",
        "Bit-identical output whatever the batch, chunking, hits or preemption. By default on for a CPU.",
    )
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    limits: LimitSettings = LimitSettings()
    runner: RunnerSettings = RunnerSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    server: ServerSettings = ServerSettings()
    operator: OperatorSettings = OperatorSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Highest precedence first: command line, environment, secret files, YAML."""
        secrets_dir = cast(SecretsSettingsSource, file_secret_settings).secrets_dir
        return (
            init_settings,
            env_settings,
            InitSettingsSource(settings_cls, _secret_values(Path(str(secrets_dir)))),
            InitSettingsSource(settings_cls, _yaml_values(os.environ.get(CONFIG_FILE_VARIABLE, ""))),
        )


class Setting(NamedTuple):
    """One leaf of the tree, for flags, documentation and error texts. `flag` is "" when there is none."""

    key: str
    flag: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.replace(".", "__").upper()

    @property
    def is_switch(self) -> bool:
        """Whether its values are true and false."""
        return bool in (self.field.annotation, *get_args(self.field.annotation))


def list_settings(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[Setting]:
    """Every setting, in the order of the tree."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from list_settings(field.annotation, f"{prefix}{name}.")
        else:
            extra = cast("dict[str, str]", field.json_schema_extra or {})
            yield Setting(prefix + name, extra.get("flag", ""), field)


def load_settings(overrides: Mapping[str, Any], *, secrets_dir: str | None = None) -> Settings:
    """Settings from all sources; `overrides` (dotted keys) come from the command line.

    `secrets_dir` must exist when it is given; the usual one need not. Raises ConfigError that names the key: one that
    does not exist, or a value outside its range.
    """
    _refuse_unknown_variables(os.environ)
    if secrets_dir is not None and not Path(secrets_dir).is_dir():
        raise ConfigError(f"--secrets-dir: {secrets_dir} is no folder")
    values = _nested(overrides, "the command line")
    try:
        return Settings(**{**values, "_secrets_dir": secrets_dir or DEFAULT_SECRETS_DIR})
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail, overrides) for detail in error.errors())) from None


def nearest(name: str, valid: list[str]) -> str:
    """ " (did you mean X?)" for the valid name closest to `name`; empty when none is close.

    The last parts must be alike as well: that two keys are of one section makes neither a misspelling of the other.
    """
    for match in difflib.get_close_matches(name, valid, n=3, cutoff=0.7):
        if difflib.SequenceMatcher(None, _last_part(name), _last_part(match)).ratio() >= 0.55:
            return f" (did you mean {match}?)"
    return ""


def _last_part(name: str) -> str:
    return re.split(r"\.|__", name.removeprefix(ENV_PREFIX))[-1]


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [setting.variable for setting in list_settings()]
    for variable, value in environ.items():
        if not variable.upper().startswith(ENV_PREFIX) or variable.upper() in _RESERVED_VARIABLES:
            continue
        is_service_link = _SERVICE_LINK.search(variable) or (variable.endswith("_PORT") and "://" in value)
        if variable.upper() not in known and not is_service_link:
            near = nearest(variable.upper(), [*known, *sorted(_RESERVED_VARIABLES)])
            raise ConfigError(f"environment: no setting is named {variable}{near}")


def _yaml_values(path: str) -> dict[str, Any]:
    if not path:
        return {}
    switches = {setting.key: setting.is_switch for setting in list_settings()}
    return read_settings_file(path, origin=CONFIG_FILE_VARIABLE, is_switch=switches)


def _secret_values(directory: Path) -> dict[str, Any]:
    return _nested({key: read_secret(path) for key, path in secret_files(directory).items()}, str(directory))


def _nested(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    known = [setting.key for setting in list_settings()]
    tree: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{origin}: no setting is named {key}{nearest(key, known)}")
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


def _explain(detail: ErrorDetails, overrides: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        sections = {setting.key.rpartition(".")[0] for setting in list_settings()} - {""}
        # Only keys of the file come this far: the other sources are checked before, each under its own name.
        origin = os.environ.get(CONFIG_FILE_VARIABLE, "")
        return f"{origin}: no setting is named {key}{nearest(key, [s.key for s in list_settings()] + sorted(sections))}"
    secrets = {setting.key for setting in list_settings() if setting.field.annotation is SecretStr}
    got = "" if key in secrets else f", not {detail['input']!r}"
    flag = next((setting.flag for setting in list_settings() if setting.key == key and key in overrides), "")
    name = f"{flag} ({key})" if flag else key
    return f"{name}: {detail['msg'][0].lower()}{detail['msg'][1:]}{got}"
