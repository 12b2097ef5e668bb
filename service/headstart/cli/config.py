"""`headstart config`: the settings as a pod would see them here, secrets masked."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from headstart.cli.flags import add_settings_flags, choices, default_text, settings_from
from headstart.config import Setting, Settings, list_settings


def configure(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--schema", action="store_true", help="Print the JSON schema of the YAML file.")
    form.add_argument("--docs", action="store_true", help="Print every setting as a Markdown table.")
    add_settings_flags(parser)


def run(parsed: argparse.Namespace) -> int:
    if parsed.schema:
        print(json.dumps(Settings.model_json_schema(), indent=2))
    elif parsed.docs:
        print(documentation())
    else:
        print(in_effect(settings_from(parsed)))
    return 0


def in_effect(settings: Settings) -> str:
    """The settings as a YAML file that gives the same ones, but for secrets. An open value says what decides it."""
    values = settings.model_dump(mode="json")
    lines: list[str] = []
    last: list[str] = []
    for setting in list_settings():
        *sections, name = setting.key.split(".")
        value: Any = values
        for depth, section in enumerate(sections):
            value = value[section]
            if sections[: depth + 1] != last[: depth + 1]:
                lines.append("  " * depth + f"{section}:")
        last, value = sections, value[name]
        text = yaml.safe_dump({name: value}, width=1_000_000).rstrip()
        lines.append("  " * len(sections) + text + ("" if value is not None else f"  # {_meaning_of_none(setting)}"))
    return "\n".join(lines)


def _meaning_of_none(setting: Setting) -> str:
    """What the description says of the default, when there is one that the model or the device decides."""
    _, found, rest = str(setting.field.description).partition("y default ")
    return f"auto: {rest}" if found else "not set"


def documentation() -> str:
    """A Markdown table of all settings: key, flag, environment variable, default, meaning."""
    lines = ["| key | flag | variable | default | meaning |", "|---|---|---|---|---|"]
    for setting in list_settings():
        flag = f"`{setting.flag}`" if setting.flag else ""
        words = f" One of {', '.join(choices(setting))}." if choices(setting) else ""
        lines.append(
            f"| `{setting.key}` | {flag} | `{setting.variable}` | {default_text(setting)} | "
            f"{setting.field.description}{words} |"
        )
    return "\n".join(lines)
