"""Flags of the settings tree: one per setting that has one, made from the tree so that the two cannot differ."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Collection
from typing import Any

from headstart.config import DEFAULT_SECRETS_DIR, Setting, Settings, list_settings, load_settings

POD_SECTIONS = frozenset(Settings.model_fields) - {"operator"}
OPERATOR_SECTIONS = frozenset({"operator", "server", "telemetry"})


def add_settings_flags(parser: argparse.ArgumentParser, *, sections: Collection[str] = POD_SECTIONS) -> None:
    """The flags of these sections. A flag that is not given leaves its setting to the other sources."""
    group = parser.add_argument_group("settings (also as environment variables, in secret files or in YAML)")
    for setting in list_settings():
        if setting.flag and setting.key.partition(".")[0] in sections:
            _add_flag(group, setting)
    group.add_argument(
        "--secrets-dir",
        metavar="FOLDER",
        help=f"One file per secret setting, such as cache__hash_seed [{DEFAULT_SECRETS_DIR}, if there is one].",
    )


def settings_from(parsed: argparse.Namespace) -> Settings:
    """The settings in effect. Raises ConfigError that names the key."""
    given = vars(parsed)
    keys = [setting.key for setting in list_settings() if given.get(setting.key) is not None]
    return load_settings({key: given[key] for key in keys}, secrets_dir=parsed.secrets_dir)


def default_text(setting: Setting) -> str:
    """The default as documentation shows it."""
    if setting.field.default is None:
        return "computed"
    masked = setting.field.default
    return str(masked).lower() if isinstance(masked, bool) else str(masked) or '""'


def choices(setting: Setting) -> list[str]:
    """The values of a setting that takes one of a few words; empty for others."""
    return [str(word) for word in typing.get_args(setting.field.annotation)] if _is_literal(setting) else []


def _is_literal(setting: Setting) -> bool:
    return typing.get_origin(setting.field.annotation) is typing.Literal


def _add_flag(group: Any, setting: Setting) -> None:
    help_text = f"{setting.field.description} [{default_text(setting)}]".replace("%", "%%")
    if setting.is_switch:
        group.add_argument(
            setting.flag, dest=setting.key, action=argparse.BooleanOptionalAction, default=None, help=help_text
        )
        return
    metavar = "|".join(choices(setting)) or setting.key.rpartition(".")[2].upper()
    group.add_argument(setting.flag, dest=setting.key, metavar=metavar, help=help_text)
