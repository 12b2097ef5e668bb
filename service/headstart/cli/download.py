"""`headstart download`: a model of the Hugging Face hub into a folder, for the pods that will read it from there."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from headstart.errors import ConfigError, ModelError

_STEP_PERCENT = 2
_ENDED_BY_SIGTERM = 143


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Pods see the whole model or none. A download that was interrupted keeps the files that were finished; "
        "one that is complete asks nobody. HF_ENDPOINT and HF_TOKEN have their usual meaning."
    )
    parser.add_argument("source", help="The model's Hugging Face id, such as HuggingFaceTB/SmolLM2-135M-Instruct.")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="The folder; made if it does not exist.")
    parser.add_argument("--revision", metavar="REV", help="A branch, a tag or a commit [main].")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="A file with the access token, as in a secret.")


def run(parsed: argparse.Namespace) -> int:
    # Imported here: the help must not wait for it.
    from headstart.model.download import download_model
    from headstart.model.source import is_hub_id

    # The first process of a container has no default for it. What was fetched is kept, so nothing needs to be put away.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_ENDED_BY_SIGTERM))
    if not is_hub_id(parsed.source):
        raise ConfigError(f"source: {parsed.source!r} is no Hugging Face id, such as owner/name")
    token = _token_in(parsed.token_file) if parsed.token_file else None
    progress = PercentLines(parsed.source)
    try:
        is_new = download_model(
            parsed.source,
            parsed.to,
            revision=parsed.revision,
            token=token,
            progress=progress.show,
            on_wait=lambda: _say(f"waiting for another download into {parsed.to}"),
        )
    except ModelError as error:
        _say(str(error))
        return 1
    _say(f"{parsed.source} is complete in {parsed.to}" if is_new else f"{parsed.to} holds {parsed.source} already")
    return 0


class PercentLines:
    """Progress as lines for a log: one each few per cent, from whatever thread tells it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next_percent = 0

    def show(self, _stage: str, fraction: float) -> None:
        percent = int(fraction * 100)
        if percent >= self._next_percent:
            self._next_percent = percent - percent % _STEP_PERCENT + _STEP_PERCENT
            _say(f"downloading {self._name}: {percent} %")


def _token_in(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: cannot read {path}: {error}") from None
    if not token:
        raise ConfigError(f"--token-file: {path} is empty")
    return token


def _say(text: str) -> None:
    print(f"headstart: {text}", file=sys.stderr, flush=True)
