"""`headstart config`: the settings as a pod would see them here, secrets masked."""

from __future__ import annotations

import argparse
import json

import yaml

from headstart.cli.flags import add_settings_flags, choices, default_text, settings_from
from headstart.config import Settings, list_settings


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
        print(yaml.safe_dump(settings_from(parsed).model_dump(mode="json"), sort_keys=False), end="")
    return 0


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
