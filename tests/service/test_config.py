"""Settings: where a value comes from, what wins, and that nothing misspelt passes in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headstart.config import CONFIG_FILE_VARIABLE, Settings, list_settings, load_settings
from headstart.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HEADSTART_")]:
        monkeypatch.delenv(variable)


@pytest.fixture
def yaml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "headstart.yaml"
    monkeypatch.setenv(CONFIG_FILE_VARIABLE, str(path))
    return path


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = load_settings({})
    assert settings.model.source == "smollm2-135m-instruct"
    assert (settings.cache.block_size, settings.cache.enable_prefix_caching, settings.cache.event_buffer) == (
        16,
        True,
        10_000,
    )
    assert (settings.scheduler.max_num_batched_tokens, settings.scheduler.max_num_seqs) == (2048, 256)
    assert (settings.scheduler.max_partial_prefills, settings.scheduler.watermark) == (4, 0.02)
    assert (settings.server.grpc_port, settings.server.health_port) == (50051, 50052)
    assert (settings.server.drain_delay_s, settings.server.drain_timeout_s) == (10, 60)


def test_the_command_line_beats_the_environment_beats_secret_files_beats_yaml(
    yaml_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    yaml_file.write_text("cache: {block_size: 1, num_blocks: 1, event_buffer: 1, hash_seed: yaml}\n")
    for name, value in {"cache__num_blocks": "2", "cache.event_buffer": "2", "cache__hash_seed": "2\n"}.items():
        (secrets / name).write_text(value)
    monkeypatch.setenv("HEADSTART_CACHE__EVENT_BUFFER", "3")
    monkeypatch.setenv("HEADSTART_CACHE__HASH_SEED", "3")
    settings = load_settings({"cache.hash_seed": "4"}, secrets_dir=str(secrets))
    assert (settings.cache.block_size, settings.cache.num_blocks, settings.cache.event_buffer) == (1, 2, 3)
    assert settings.cache.hash_seed.get_secret_value() == "4"


def test_one_nested_key_leaves_its_neighbours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_SCHEDULER__MAX_NUM_SEQS", "8")
    settings = load_settings({"scheduler.watermark": 0.1})
    assert (settings.scheduler.max_num_seqs, settings.scheduler.watermark) == (8, 0.1)
    assert settings.scheduler.max_num_batched_tokens == 2048


def test_a_misspelt_variable_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__BLOK_SIZE", "16")
    with pytest.raises(ConfigError, match=r"HEADSTART_CACHE__BLOK_SIZE \(did you mean HEADSTART_CACHE__BLOCK_SIZE"):
        load_settings({})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cach: {}\n", r"cach \(did you mean cache\?\)"),
        ("cache: {blok_size: 16}\n", r"cache\.blok_size \(did you mean cache\.block_size\?\)"),
        ("devise: cpu\n", r"devise \(did you mean device\?\)"),
        ("cache: 5\n", "cache: input should be a valid dictionary"),
        ("[1, 2]\n", "expected keys and values, found a list"),
        ("a: b: c\n", "cannot read"),
        ("1: 2\n", "a key must be text, not 1"),
        ("cache: {1: 2}\n", "a key must be text, not 1"),
        ("cache.block_size: 8\n", "nest it: block_size under cache"),
        ("cache: {block_size: true}\n", r"cache\.block_size: neither true nor false"),
        ("cache: {memory_fraction: on}\n", r"cache\.memory_fraction: neither true nor false"),
    ],
)
def test_a_wrong_yaml_file_says_what_is_wrong(yaml_file: Path, text: str, expected: str) -> None:
    yaml_file.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        load_settings({})


def test_a_missing_yaml_file_is_an_error_and_an_empty_one_is_not(yaml_file: Path) -> None:
    with pytest.raises(ConfigError, match=CONFIG_FILE_VARIABLE):
        load_settings({})
    yaml_file.write_text("# nothing yet\n")
    assert load_settings({}) == Settings()
    yaml_file.write_text("cache:\nserver:\n")
    assert load_settings({}) == Settings()
    yaml_file.write_text("cache: {enable_prefix_caching: false}\ndeterministic: true\n")
    assert (load_settings({}).cache.enable_prefix_caching, load_settings({}).deterministic) == (False, True)


def test_each_misspelt_key_of_the_yaml_file_is_told_with_the_files_name_and_the_nearest(yaml_file: Path) -> None:
    yaml_file.write_text("cache: {blok_size: 8}\nschedular: {policy: fcfs}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({})
    assert sorted(str(caught.value).splitlines()) == [
        f"{yaml_file}: no setting is named cache.blok_size (did you mean cache.block_size?)",
        f"{yaml_file}: no setting is named schedular (did you mean scheduler?)",
    ]


def test_a_misspelt_secret_file_names_the_nearest_and_a_mounts_dot_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / ".hidden").write_text("x")
    load_settings({}, secrets_dir=str(tmp_path))
    (tmp_path / "cache__hash_sed").write_text("x")
    with pytest.raises(ConfigError, match=r"cache\.hash_sed \(did you mean cache\.hash_seed\?\)"):
        load_settings({}, secrets_dir=str(tmp_path))


def test_a_secret_file_that_is_no_text_is_named_and_its_bytes_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "cache__hash_seed").write_bytes(b"canary\xff")
    with pytest.raises(ConfigError, match="cache__hash_seed: not UTF-8 text") as caught:
        load_settings({}, secrets_dir=str(tmp_path))
    assert "canary" not in str(caught.value)


def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache__hash_seed").write_text("x")

    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    with pytest.raises(ConfigError, match="cache__hash_seed: cannot be read: Permission denied"):
        load_settings({}, secrets_dir=str(tmp_path))


def test_a_secrets_folder_that_is_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--secrets-dir: .*nowhere is no folder"):
        load_settings({}, secrets_dir=str(tmp_path / "nowhere"))


def test_the_name_of_the_yaml_file_is_among_the_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_CONFG_FILE", "x")
    with pytest.raises(ConfigError, match=r"did you mean HEADSTART_CONFIG_FILE\?"):
        load_settings({})


@pytest.mark.parametrize("variable", ["HEADSTART_FOO", "HEADSTART_SCHEDULER__FOO", "HEADSTART_XYZZY"])
def test_a_name_that_is_near_to_none_gets_no_suggestion(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ConfigError, match=f"no setting is named {variable}$"):
        load_settings({})


def test_a_wrong_value_of_a_flag_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--port \(server\.grpc_port\): .*'abc'"):
        load_settings({"server.grpc_port": "abc"})
    monkeypatch.setenv("HEADSTART_SERVER__GRPC_PORT", "abc")
    with pytest.raises(ConfigError, match=r"^server\.grpc_port: "):
        load_settings({})


def test_reserved_names_and_the_service_variables_of_kubernetes_are_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "HEADSTART_NATIVE": "0",
        "HEADSTART_ISA": "avx2",
        "HEADSTART_SERVICE_HOST": "10.0.0.1",
        "HEADSTART_SERVICE_PORT_GRPC": "50051",
        "HEADSTART_PORT": "tcp://10.0.0.1:50051",
        "HEADSTART_PORT_50051_TCP_ADDR": "10.0.0.1",
        "HEADSTART_OPERATOR_SERVICE_HOST": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    assert load_settings({}) == Settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cache.block_size", 0),
        ("cache.num_blocks", 0),
        ("cache.memory_bytes", "lots"),
        ("cache.memory_fraction", float("nan")),
        ("cache.memory_fraction", 1.5),
        ("scheduler.watermark", 1.0),
        ("scheduler.watermark", float("nan")),
        ("scheduler.max_num_seqs", -1),
        ("scheduler.max_num_batched_tokens", "many"),
        ("scheduler.policy", "lifo"),
        ("model.max_len", 1),
        ("model.dtype", "float16"),
        ("runner.step_seconds", float("inf")),
        ("server.grpc_port", 65_536),
        ("server.drain_timeout_s", -1),
        ("limits.max_n", 0),
        ("limits.max_logprobs", 101),  # more would not fit a message of the usual size
        ("deterministic", "perhaps"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_settings({key: value})


def test_every_number_has_a_range() -> None:
    unbounded = [s.key for s in list_settings() if s.field.annotation in (int, float) and not s.field.metadata]
    assert unbounded == []


def test_sizes_may_have_units() -> None:
    assert load_settings({"cache.memory_bytes": "100MiB"}).cache.memory_bytes == 104_857_600


def test_a_secret_is_masked_wherever_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({"cache.hash_seed": "canary"})
    assert "canary" not in repr(settings) + str(settings.model_dump(mode="json"))
    monkeypatch.setenv("HEADSTART_SCHEDULER__MAX_NUM_SEQS", "0")
    with pytest.raises(ConfigError) as caught:
        load_settings({"cache.hash_seed": "canary"})
    assert "canary" not in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.cache.block_size = 32  # type: ignore[misc]


def test_flags_are_unique_and_every_setting_is_explained() -> None:
    flags = [setting.flag for setting in list_settings() if setting.flag]
    assert len(flags) == len(set(flags))
    assert [setting.key for setting in list_settings() if not setting.field.description] == []


def test_a_setting_two_sections_deep_is_reached_from_every_source(
    yaml_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "server__tls__key_file").write_text("from a secret file\n")
    yaml_file.write_text("server: {auth: {keys_dir: from yaml}, tls: }\n")
    monkeypatch.setenv("HEADSTART_SERVER__AUTH__SHARE_CACHE", "true")
    settings = load_settings({"server.tls.cert_file": "from a flag"}, secrets_dir=str(secrets))
    assert settings.server.tls.cert_file == "from a flag"
    assert settings.server.tls.key_file == "from a secret file"
    assert (settings.server.auth.keys_dir, settings.server.auth.share_cache) == ("from yaml", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {tls: {cert_fil: x}}", r"server\.tls\.cert_fil \(did you mean server\.tls\.cert_file\?\)"),
        ("server: {auth: {keys_dir: true}}", r"server\.auth\.keys_dir: neither true nor false"),
        ("server: {auth.keys_dir: x}", r"server\.auth\.keys_dir is written as one key"),
        ("server: {auth: 5}", r"server\.auth: "),
    ],
)
def test_a_wrong_key_two_sections_deep_is_named_in_full(yaml_file: Path, text: str, message: str) -> None:
    yaml_file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=message):
        load_settings({})


def test_no_error_shows_the_routers_key(yaml_file: Path) -> None:
    yaml_file.write_text("operator: {pod_key: [canary]}\n")
    with pytest.raises(ConfigError, match=r"operator\.pod_key") as caught:
        load_settings({})
    assert "canary" not in str(caught.value)


def test_the_clients_key_in_the_environment_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_API_KEY", "a-client's-own-key")
    load_settings({})
