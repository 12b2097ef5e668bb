from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headstart.errors import ModelError
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import open_checkpoint
from safetensors.torch import load_file, save_file
from service.model.tiny_models import greedy, open_forward, save_model

PROMPT = list(range(10, 50))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama3")
    save_model("llama3", path)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_every_tensor_equals_what_was_saved(saved: Path) -> None:
    checkpoint = open_checkpoint(saved)
    expected = load_file(saved / "model.safetensors")
    assert set(checkpoint.tensor_names) == set(expected)
    for name in checkpoint.tensor_names:
        tensor = checkpoint.tensor(name)
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, expected[name].numpy())
    assert (checkpoint.directory, checkpoint.gguf_metadata) == (saved, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_widen_exactly(directory: Path, dtype: torch.dtype) -> None:
    rewrite(directory, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    checkpoint = open_checkpoint(directory)
    for name, tensor in load_file(directory / "model.safetensors").items():
        assert np.array_equal(checkpoint.tensor(name), tensor.float().numpy())


@pytest.mark.parametrize("name", ["llama3", "smollm2"])
def test_a_sharded_model_equals_the_whole_one(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path / "whole")
    save_model(name, tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    whole, shards = open_checkpoint(tmp_path / "whole"), open_checkpoint(tmp_path / "shards")
    assert whole.fingerprint == shards.fingerprint
    outputs = [greedy(open_forward(tmp_path / kind), PROMPT, 8, [1, 2, 3]) for kind in ("whole", "shards")]
    assert outputs[0] == outputs[1]


def test_tied_embeddings_need_no_head_and_ignore_a_copy_of_it(tmp_path: Path) -> None:
    save_model("smollm2", tmp_path)
    before = open_checkpoint(tmp_path)
    assert "lm_head.weight" not in before.tensor_names
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert open_checkpoint(tmp_path).fingerprint == before.fingerprint


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop(NORM), f"{NORM} is missing"),
        (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight is missing"),
        (lambda tensors: tensors.update({NORM: torch.zeros(7)}), rf"{NORM} has shape \(7,\)"),
        (
            lambda tensors: tensors.update({"model.visual.weight": torch.zeros(7)}),
            r"model\.visual\.weight is not known",
        ),
    ],
)
def test_a_wrong_tensor_is_named(directory: Path, change: Callable[[dict[str, Any]], Any], named: str) -> None:
    rewrite(directory, change)
    with pytest.raises(ModelError, match=named):
        open_checkpoint(directory)


def test_a_tensor_of_a_type_that_is_not_served_is_named(directory: Path) -> None:
    rewrite(directory, lambda tensors: tensors.update({NORM: tensors[NORM].to(torch.int64)}))
    with pytest.raises(ModelError, match=f"{NORM} is stored as I64"):
        open_checkpoint(directory).tensor(NORM)


@pytest.mark.parametrize("size", [4, 100, 20_000])
def test_a_file_that_is_cut_short_is_refused(directory: Path, size: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"short|no safetensors file"):
        open_checkpoint(directory)


def test_pickled_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=name.removeprefix("model")):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["model-00009.safetensors", "../outside.safetensors"])
def test_an_index_may_only_name_files_of_the_directory(directory: Path, name: str) -> None:
    shutil.copy(directory / "model.safetensors", directory.parent / "outside.safetensors")
    index = {"weight_map": {NORM: name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="does not hold"):
        open_checkpoint(directory)


def test_the_fingerprint_sees_config_names_types_and_first_bytes(directory: Path) -> None:
    before = open_checkpoint(directory).fingerprint
    rewrite(directory, lambda tensors: tensors[NORM].view(-1)[0].add_(1))
    changed_value = open_checkpoint(directory).fingerprint
    rewrite(directory, lambda tensors: tensors.update({NORM: tensors[NORM].half()}))
    changed_type = open_checkpoint(directory).fingerprint
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    changed_config = open_checkpoint(directory).fingerprint
    assert len({before, changed_value, changed_type, changed_config}) == 4
    assert len(before) == 64


def write_gguf(path: Path, arch: str, source: Path, *, factors: list[float] | None = None) -> None:
    """A GGUF file as llama.cpp's converter writes it: its names, and for "llama" its order of q and k rows."""
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_layers)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name in checkpoint.tensor_names:
        values = checkpoint.tensor(name)
        projection = name.split(".")[-2]
        if arch == "llama" and projection in heads:
            pairs = values.reshape(heads[projection], 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("name", "arch"),
    [("llama2", "llama"), ("smollm2", "llama"), ("mistral", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_a_gguf_file_is_the_same_model_as_the_directory_it_was_made_from(name: str, arch: str, tmp_path: Path) -> None:
    save_model(name, tmp_path / "model")
    path = tmp_path / "model.gguf"
    write_gguf(path, arch, tmp_path / "model")
    expected, checkpoint = open_checkpoint(tmp_path / "model"), open_checkpoint(path)
    assert checkpoint.config.tie_embeddings == expected.config.tie_embeddings
    assert checkpoint.tensor_names == expected.tensor_names
    for tensor in expected.tensor_names:
        assert np.array_equal(checkpoint.tensor(tensor), expected.tensor(tensor)), tensor
    pages = [1, 2, 3]
    assert greedy(open_forward(path), PROMPT, 8, pages) == greedy(open_forward(tmp_path / "model"), PROMPT, 8, pages)


def test_rope_factors_are_read_from_a_gguf_file(tmp_path: Path) -> None:
    save_model("llama2", tmp_path / "model")
    write_gguf(tmp_path / "model.gguf", "llama", tmp_path / "model", factors=[1.0, 2.0, 4.0, 8.0])
    scaling = open_checkpoint(tmp_path / "model.gguf").config.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factors) == ("factors", (1.0, 2.0, 4.0, 8.0))


def test_rope_factors_of_another_number_than_the_frequencies_are_refused(tmp_path: Path) -> None:
    save_model("llama2", tmp_path / "model")
    write_gguf(tmp_path / "model.gguf", "llama", tmp_path / "model", factors=[1.0, 2.0])
    with pytest.raises(ModelError, match=r"rope_freqs.weight has shape \(2,\)"):
        open_checkpoint(tmp_path / "model.gguf")


def test_more_layers_than_the_file_has_tensors_are_refused_at_once(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 2**32 - 1}))
    with pytest.raises(ModelError, match="4294967295 layers, the weights have 30 tensors"):
        open_checkpoint(directory)


def test_a_tensor_whose_layer_is_no_number_is_named(tmp_path: Path) -> None:
    path = resolve_source(BUILT_IN)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes().replace(b"blk.2.attn_q.weight", b"blk.x.attn_q.weight", 1))
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.q_proj\.weight is missing"):
        open_checkpoint(damaged)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"no model at all" * 10)
    with pytest.raises(ModelError, match="no readable GGUF"):
        open_checkpoint(tmp_path / "model.gguf")


def test_opening_tells_when_it_is_done(saved: Path) -> None:
    told: list[tuple[str, float]] = []
    open_checkpoint(saved, lambda *step: told.append(step))
    assert told == [("open", 0.0), ("open", 1.0)]
