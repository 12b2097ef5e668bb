"""Reads a YAML file of settings, and refuses what would be misread later; and secret files, one per setting.

It knows the keys it is told, no settings. Holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError


def read_settings_file(path: str, *, origin: str, is_switch: Mapping[str, bool]) -> dict[str, Any]:
    """The file's values; an empty section is one that changes nothing. Keys that do not exist are passed on.

    `origin` is what named the file; `is_switch` tells of each dotted key whether its values are true and false.
    Raises ConfigError.
    """
    import yaml  # only those who have a file pay for it at their start

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{origin}: cannot read {path}: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values, found a {type(content).__name__}")
    return _checked(path, content, is_switch)


def _checked(path: str, content: Mapping[Any, Any], is_switch: Mapping[str, bool], section: str = "") -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in content.items():
        _check(path, name, value, is_switch, section=section)
        inner = f"{section}{name}."
        is_section = any(key.startswith(inner) for key in is_switch)
        if is_section and (value is None or isinstance(value, dict)):
            value = _checked(path, value or {}, is_switch, inner)
        tree[name] = value
    return tree


def _check(path: str, name: object, value: object, is_switch: Mapping[str, bool], *, section: str = "") -> None:
    if not isinstance(name, str):
        raise ConfigError(f"{path}: a key must be text, not {name!r}")
    if "." in name:
        outer, _, inner = name.partition(".")
        raise ConfigError(f"{path}: {section}{name} is written as one key; nest it: {inner} under {outer}")
    if isinstance(value, bool) and not is_switch.get(section + name, True):
        raise ConfigError(f"{path}: {section}{name}: neither true nor false is a value of it")


def secret_files(folder: Path) -> dict[str, Path]:
    """By dotted key: one file each, named like `cache.hash_seed` or `cache__hash_seed`. Dot files are skipped."""
    if not folder.is_dir():
        return {}
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return {path.name.lower().replace("__", "."): path for path in files}


def read_secret(path: Path) -> str:
    """Without the white space around it. Raises ConfigError, which shows nothing of it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None  # its bytes are a secret, also in an error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
