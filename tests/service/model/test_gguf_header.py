"""The header against the `gguf` package, and files that lie about their lengths."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from headstart.errors import ModelError
from headstart.model.gguf_file import GgufFile
from headstart.model.gguf_header import read_header
from headstart.model.source import BUILT_IN, resolve_source
from hypothesis import given
from hypothesis import strategies as st


def small_file(path: Path) -> bytes:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("a.number", 7)
    writer.add_float32("a.fraction", 0.5)
    writer.add_bool("a.switch", True)
    writer.add_string("a.text", "größer")
    writer.add_array("a.words", ["one", "", "zwölf"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_int64("a.long", -(2**40))
    writer.add_tensor("t.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("u.weight", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_file(tmp_path_factory.mktemp("gguf") / "small.gguf")


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def test_values_of_every_kind_are_read(content: bytes) -> None:
    metadata = read_header(as_array(content)).metadata
    assert metadata == {
        "general.architecture": "llama",
        "a.number": 7,
        "a.fraction": 0.5,
        "a.switch": True,
        "a.text": "größer",
        "a.words": ["one", "", "zwölf"],
        "a.numbers": [1, -2, 3],
        "a.long": -(2**40),
    }
    assert all(type(value) in (str, int, float, bool, list) for value in metadata.values())


def test_tensors_are_where_the_header_says(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(content)
    file = GgufFile(tmp_path / "small.gguf")
    assert file.shapes() == {"t.weight": (3, 4), "u.weight": (5,)}
    assert np.array_equal(file.tensor("t.weight"), np.arange(12, dtype=np.float32).reshape(3, 4))
    assert np.array_equal(file.tensor("u.weight"), np.arange(5, dtype=np.float32))
    assert file.head_bytes("t.weight", 8) == struct.pack("<2f", 0.0, 1.0)


def test_the_built_in_file_reads_as_the_gguf_package_reads_it() -> None:
    path = resolve_source(BUILT_IN)
    reader = gguf.GGUFReader(str(path))
    header = read_header(np.memmap(path, np.uint8, mode="r"))
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    # Word lists take the package seconds each; one of them shows it.
    for key in [key for key in fields if key not in ("tokenizer.ggml.merges", "tokenizer.ggml.token_type")]:
        assert header.metadata[key] == fields[key].contents()
    found = {name: (tensor.shape, tensor.type_id, tensor.start) for name, tensor in header.tensors.items()}
    assert found == {
        tensor.name: (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type.value, tensor.data_offset)
        for tensor in reader.tensors
    }


def test_a_file_that_ends_anywhere_in_its_header_is_refused(content: bytes) -> None:
    header_bytes = content.index(b"u.weight") + 8
    for length in range(header_bytes):
        with pytest.raises(ModelError, match=r"cut short|begin"):
            read_header(as_array(content[:length]))


def test_a_string_longer_than_any_file_is_refused(content: bytes) -> None:
    place = content.index(b"one") - 8
    with pytest.raises(ModelError, match="cut short"):
        read_header(as_array(content[:place] + struct.pack("<Q", 2**64 - 1) + content[place + 8 :]))


def test_a_tensor_beyond_the_end_is_refused_and_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "short.gguf").write_bytes(content[:-60])
    file = GgufFile(tmp_path / "short.gguf")
    with pytest.raises(ModelError, match=r"u\.weight"):
        file.tensor("u.weight")


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_another_version_or_byte_order_is_refused(content: bytes, version: int) -> None:
    changed = content[:4] + struct.pack("<I", version) + content[8:]
    with pytest.raises(ModelError, match=f"version {version}"):
        read_header(as_array(changed))


@given(data=st.data())
def test_a_damaged_header_is_read_or_refused_but_never_worse(content: bytes, data: st.DataObject) -> None:
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 128, 255]))
    try:
        header = read_header(as_array(bytes(changed)))
    except ModelError:
        return
    assert isinstance(header.metadata, dict)
