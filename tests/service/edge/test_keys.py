"""API keys in files: which are taken, which refused, and how a change of the files comes in."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from headstart.edge.keys import MIN_KEY_CHARS, KeyRing, read_keys
from headstart.errors import ConfigError

FIRST, SECOND, THIRD = ("first-key-" + "a" * 16, "second-key-" + "b" * 16, "third-key-" + "c" * 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t1").write_text(f"{FIRST}\n")
    (tmp_path / "t2").write_text(f"{SECOND}\r\n\n{THIRD}")
    return tmp_path


def test_a_file_names_its_tenant_and_each_of_its_lines_is_a_key(folder: Path) -> None:
    ring = KeyRing(folder)
    assert [ring.tenant_of(key) for key in (FIRST, SECOND, THIRD)] == ["t1", "t2", "t2"]
    assert ring.num_tenants == 2


@pytest.mark.parametrize("key", ["", FIRST[:-1], FIRST + "x", FIRST.upper(), "\udcff", f"{FIRST}\n"])
def test_what_is_nearly_a_key_is_nobodys(folder: Path, key: str) -> None:
    assert KeyRing(folder).tenant_of(key) is None


def test_kubernetes_own_entries_are_no_tenants(folder: Path) -> None:
    (folder / "..2024").mkdir()
    (folder / "..data").symlink_to("..2024")
    assert set(read_keys(folder).values()) == {"t1", "t2"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t3", b"", r"t3 holds no key"),
        ("t3", b"  \n\n", r"t3 holds no key"),
        ("t3", b"canary-key-is-fine-1\nshort-canary\n", rf"t3, key 2: shorter than {MIN_KEY_CHARS}"),
        ("t3", b"canary-key-with a-blank\n", r"t3, key 1: only visible ASCII"),
        ("t3", "canary-key-ünicode-1".encode(), r"t3, key 1: only visible ASCII"),
        ("t3", b"canary" * 200_000, r"t3 is no file of keys"),
        ("t3", FIRST.encode(), r"t1 and .*t3 hold the same key"),
    ],
)
def test_a_file_that_cannot_hold_keys_is_named_with_its_setting_and_never_shown(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        KeyRing(folder)
    assert str(caught.value).startswith("server.auth.keys_dir: ")
    assert "canary" not in str(caught.value)
    assert FIRST not in str(caught.value)


def test_a_folder_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no keys"):
        KeyRing(tmp_path)
    with pytest.raises(ConfigError, match=r"server\.auth\.keys_dir: .*gone cannot be read: No such file"):
        KeyRing(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder cannot be read"):
        KeyRing(tmp_path)


def test_one_key_is_replaced_by_way_of_two(folder: Path) -> None:
    ring = KeyRing(folder)
    (folder / "t1").write_text(f"{FIRST}\nanother-key-of-the-first\n")
    ring.refresh()
    assert {ring.tenant_of(FIRST), ring.tenant_of("another-key-of-the-first")} == {"t1"}
    (folder / "t1").write_text("another-key-of-the-first\n")
    ring.refresh()
    assert (ring.tenant_of(FIRST), ring.tenant_of("another-key-of-the-first")) == (None, "t1")


def test_the_switch_of_a_mounted_secret_is_seen(tmp_path: Path) -> None:
    for state, key in (("..1", FIRST), ("..2", SECOND)):
        (tmp_path / state).mkdir()
        (tmp_path / state / "t1").write_text(key)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "t1").symlink_to("..data/t1")
    ring = KeyRing(tmp_path)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    ring.refresh()
    assert (ring.tenant_of(FIRST), ring.tenant_of(SECOND)) == (None, "t1")


def test_a_broken_new_state_keeps_the_old_keys_and_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing(folder)
    (folder / "t2").write_text("canary\n")
    ring.refresh()
    ring.refresh()
    assert ring.tenant_of(SECOND) == "t2"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "t2, key 1" in caplog.text
    assert "canary" not in caplog.text
    (folder / "t2").write_text(THIRD)
    ring.refresh()
    assert (ring.tenant_of(SECOND), ring.tenant_of(THIRD)) == (None, "t2")


def test_files_that_did_not_change_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(folder)
    monkeypatch.setattr(Path, "open", None)
    ring.refresh()
    assert ring.tenant_of(FIRST) == "t1"
