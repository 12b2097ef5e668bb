"""The command line: help, misspelt words, the messages that its flags make, what it prints."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from headstart.cli import cache, chat, generate, main
from headstart.cli.demo import demo_settings
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import prefix_cache_pb2 as cache_pb
from headstart.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HEADSTART_")]:
        monkeypatch.delenv(variable)


def _request(*arguments: str) -> pb.GenerateRequest:
    parser = argparse.ArgumentParser()
    generate.configure(parser)
    return generate.build_request(parser.parse_args(arguments))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in ("serve", "demo", "generate", "chat", "cache", "config"))


def test_no_command_prints_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_a_misspelt_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err


def test_a_misspelt_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["config", "--max-num-seq", "8"])
    assert stopped.value.code == 2
    assert "--max-num-seq (did you mean --max-num-seqs?)" in capsys.readouterr().err


def test_a_value_out_of_range_is_one_line_on_stderr_with_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--block-size", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headstart: --block-size (cache.block_size): ")
    assert captured.err.count("\n") == 1


def test_config_prints_the_settings_in_effect_as_yaml_with_secrets_masked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSTART_CACHE__HASH_SEED", "canary")
    assert main(["config", "--max-num-seqs", "8", "--no-enable-prefix-caching"]) == 0
    printed = capsys.readouterr().out
    settings = yaml.safe_load(printed)
    assert settings["scheduler"]["max_num_seqs"] == 8
    assert settings["cache"]["enable_prefix_caching"] is False
    assert "canary" not in printed


def test_config_says_of_an_open_value_what_decides_it_and_stays_a_file_that_can_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main(["config", "--block-size", "8"]) == 0
    printed = capsys.readouterr().out
    assert "  max_len: null  # auto: the model's, but one request must fit the pool." in printed
    assert "deterministic: null  # auto: on for a CPU." in printed
    assert "  otlp_endpoint: null  # not set" in printed
    lines = [line for line in printed.splitlines(keepends=True) if "hash_seed" not in line]
    (tmp_path / "settings.yaml").write_text("".join(lines))
    monkeypatch.setenv("HEADSTART_CONFIG_FILE", str(tmp_path / "settings.yaml"))
    assert main(["config"]) == 0
    assert capsys.readouterr().out == printed


def test_the_demo_computes_on_a_cpu_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_DEVICE", "cuda")
    assert demo_settings().device == "cpu"


def test_config_documents_every_setting_and_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--docs"]) == 0
    assert "| `cache.block_size` | `--block-size` | `HEADSTART_CACHE__BLOCK_SIZE` | 16 |" in capsys.readouterr().out
    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["device"]["enum"] == ["auto", "cpu", "cuda"]


def test_what_vllm_counts_otherwise_is_said_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "The gRPC port (vLLM's --port is HTTP)" in printed
    assert "vLLM counts its null block too" in printed


def test_the_command_line_starts_without_loading_what_a_pod_needs() -> None:
    program = (
        "import sys; from headstart.cli import main; main(['--help']); "
        "heavy = {'torch', 'grpc', 'pydantic', 'numpy', 'rich', 'tokenizers'} & set(sys.modules); "
        "raise SystemExit(len(heavy))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_flags_that_are_not_given_leave_the_choice_to_the_server() -> None:
    request = _request("hello")
    assert request.WhichOneof("prompt") == "text"
    assert not request.HasField("max_tokens")
    assert not request.sampling.HasField("temperature")
    assert not request.HasField("logprobs")


def test_flags_become_the_fields_of_the_request() -> None:
    request = _request(
        "hello", "--max-tokens", "7", "--temperature", "0", "--seed", "3", "--stop", "a", "--stop", "b", "--n", "2"
    )
    assert (request.max_tokens, request.sampling.temperature, request.sampling.seed, request.n) == (7, 0.0, 3, 2)
    assert request.sampling.HasField("temperature")
    assert list(request.stop_strings) == ["a", "b"]


def test_token_ids_go_as_ids_even_when_there_are_none() -> None:
    assert list(_request("--token-ids", "1, 2,3").token_ids.ids) == [1, 2, 3]
    assert _request("--token-ids", "").WhichOneof("prompt") == "token_ids"


def test_a_system_turn_makes_it_a_chat() -> None:
    messages = _request("hi", "--system", "Be brief.").chat.messages
    assert [(message.role, message.content[0].text) for message in messages] == [
        ("system", "Be brief."),
        ("user", "hi"),
    ]


def test_a_prompt_may_come_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert _request("-").text == "from a pipe"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--token-ids", "1,x"),
        ("--token-ids", "-1"),
        ("--max-tokens", "-5"),
        ("--n", "-1"),
        ("--seed", "-1"),
        ("--timeout", "-1"),
        ("--timeout", "nan"),
        ("--endpoint", "127.0.0.1:99999"),
        ("--endpoint", "127.0.0.1"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_here_and_its_flag_is_named(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["generate", flag, value])
    assert stopped.value.code == 2
    assert f"error: argument {flag}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["hi", "--token-ids", "1"], "--token-ids is the whole prompt; leave out a text"),
        (["--chat", "--token-ids", "1"], "leave out --chat"),
        (["--system", "x", "--token-ids", "1"], "leave out --system"),
        (["hi", "--logprobs", "2"], "--logprobs is shown with --json only"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_bytes_on_stdin_that_are_no_text_are_one_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert main([command, "-"]) == 2
    assert capsys.readouterr().err == "headstart: stdin: not UTF-8 text\n"


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"hi \xff\n"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_turn_that_is_no_text_is_one_line(line: bytes, errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line), encoding="utf-8", errors=errors))
    with pytest.raises(ConfigError, match=r"^stdin: not UTF-8 text$"):
        chat._ask()


@pytest.mark.parametrize("flag", ["--stop", "--system", "--cache-salt", "--model"])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_flags_text_that_cannot_be_sent_is_refused_with_its_name(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, flag, "\udcff"])
    assert stopped.value.code == 2
    assert f"error: argument {flag}: not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("arguments", [["config"], ["--help"]])
def test_an_output_that_is_full_is_one_line(arguments: list[str], is_buffered: bool) -> None:
    command = [sys.executable, *([] if is_buffered else ["-u"]), "-m", "headstart", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    assert (ended.returncode, ended.stderr) == (1, "headstart: cannot write: No space left on device\n")


def test_a_character_that_the_terminal_has_not_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["--version"]) == 0
    generate.print_text([pb.GenerateResponse(chunk=pb.Chunk(text="hot \U0001f336"))], 1)
    assert shown.getvalue().endswith(b"hot ?")


def test_a_misspelt_part_of_cache_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cache", "verfy"])
    assert "no such command: verfy (did you mean verify?); show or verify" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["xyzzy", "--foo"])
def test_what_is_near_to_nothing_gets_no_suggestion(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main([word] if word == "xyzzy" else ["config", word])
    assert "did you mean" not in capsys.readouterr().err


def test_chat_looks_for_its_pod_before_it_asks_for_a_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = io.StringIO("hello\n")
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["chat", "--endpoint", "127.0.0.1:1", "--timeout", "5"]) == 1
    assert "is a pod running at 127.0.0.1:1?" in capsys.readouterr().err
    assert typed.tell() == 0


def test_cache_json_has_numbers_under_names_that_stay() -> None:
    held = cache.Held(cache_pb.Hello(block_size=16, epoch="abcdef0123", model="tiny"), 5, {1: 0, 2: 1, 3: 1, 8: 0})
    shown = cache.json_summary(cache_pb.State(queried_tokens=100, hit_tokens=25, features={"a": "on"}), held)
    assert json.loads(json.dumps(shown)) == shown
    state = shown["state"]
    assert isinstance(state, dict)
    assert (state["queried_tokens"], state["hit_tokens"], state["features"]) == (100, 25, {"a": "on"})
    assert shown["cache"] == {
        "pod_name": "",
        "model": "tiny",
        "block_size": 16,
        "num_hashes": 4,
        "num_first_blocks": 2,
        "num_chain_ends": 3,
        "digest": f"{1 ^ 2 ^ 3 ^ 8:016x}",
        "snapshot_epoch": "abcdef0123",
        "snapshot_seq": 5,
    }


def test_nobody_listening_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--endpoint", "127.0.0.1:1", "--timeout", "5"]) == 1
    error = capsys.readouterr().err
    assert "UNAVAILABLE" in error
    assert "is a pod running at 127.0.0.1:1?" in error
    assert "Traceback" not in error


def test_a_stream_is_printed_as_it_comes_and_its_cost_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    usage = pb.Usage(prompt_tokens=31, cached_tokens=16, completion_tokens=2)
    responses = [
        pb.GenerateResponse(chunk=pb.Chunk(text="Hel")),
        pb.GenerateResponse(chunk=pb.Chunk(text="lo")),
        pb.GenerateResponse(finished=pb.Finished(finish_reason=pb.FINISH_REASON_STOP, usage=usage)),
    ]
    generate.print_text(responses, 1)
    captured = capsys.readouterr()
    assert captured.out == "Hello\n"
    assert "31 prompt tokens, 16 of them cached; 2 generated (stop)" in captured.err


def test_json_output_is_one_line_a_message_and_shows_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    generate.print_json(
        [pb.GenerateResponse(chunk=pb.Chunk(text="é\n", token_ids=[1])), pb.GenerateResponse(finished=pb.Finished())]
    )
    chunk, finished = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (chunk["chunk"]["text"], chunk["chunk"]["index"]) == ("é\n", 0)
    assert finished["finished"]["finish_reason"] == "FINISH_REASON_UNSPECIFIED"


def test_a_cache_summary_counts_chains_and_xors_hashes() -> None:
    held = cache.Held(cache_pb.Hello(block_size=16, epoch="abcdef0123"), 5, {1: 0, 2: 1, 3: 1, 8: 0})
    rows = dict(cache.summarise(cache_pb.State(queried_tokens=100, hit_tokens=25), held))
    assert rows["hashes held"] == "4"
    assert rows["first blocks, chain ends"] == "2, 3"
    assert rows["digest (xor of hashes)"] == f"{1 ^ 2 ^ 3 ^ 8:016x}"
    assert rows["of them cached"] == "25 (25.0%)"
