"""A model of the hub in a folder that pods read: they find all of it there, or nothing that they could take for one.

What is fetched collects in a hidden folder beside it and is moved into place when it is complete, last of all
`config.json`, without which a folder is no model. Several downloads into one folder wait for each other. Knows nothing
of what is in the files. The folder owns the state: a mark says what it holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headstart.errors import ConfigError, ModelError
from headstart.model.source import fetch_model, list_model_files

MARK = ".headstart-download.json"

_LAST = "config.json"
_STAGING = ".headstart-download"
_LOCK = ".headstart-download.lock"
# Where the hub's library keeps what it is receiving. It goes on with no file that another process began.
_UNFINISHED = ".cache/huggingface/download/*.incomplete"
_LOCK_POLL_S = 0.5


def download_model(
    source: str,
    directory: Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    progress: Callable[[str, float], None],
    on_wait: Callable[[], None] = lambda: None,
) -> bool:
    """Fill `directory` with the hub's model `source`; False when it held it already, and the hub was not asked.

    Files that an interrupted call had finished are kept by the next. `revision` is a branch, a tag or a commit.
    `progress` is told ("download", fraction); `on_wait` is called when another download works on the folder.
    Raises ModelError when the hub does not give it, ConfigError when the folder holds another model or takes none.
    """
    wanted = {"source": source, "revision": revision or "main"}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / _LOCK, on_wait):
            if _holds(directory, wanted):
                return False
            commit, files = list_model_files(source, revision=revision, token=token)
            staging = directory / _STAGING
            for left_behind in staging.glob(_UNFINISHED):
                left_behind.unlink()
            fetch_model(source, revision=commit, token=token, directory=staging, progress=progress)
            _check(source, staging, files)
            _publish(staging, directory, {**wanted, "commit": commit, "files": files})
    except OSError as error:
        raise ConfigError(f"cannot write a model to {directory}: {error.strerror or error}") from None
    return True


def _holds(directory: Path, wanted: dict[str, str]) -> bool:
    mark = directory / MARK
    try:
        held = json.loads(mark.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        held = None
    if not isinstance(held, dict):
        if (directory / _LAST).exists():
            raise ConfigError(
                f"{directory} holds a model that headstart download did not put there: choose another folder"
            )
        return False
    if {key: held.get(key) for key in wanted} != wanted:
        raise ConfigError(
            f"{directory} holds {held.get('source')} at {held.get('revision')}, not {wanted['source']} at "
            f"{wanted['revision']}: choose another folder, pods may be reading this one"
        )
    return _is_whole(directory, held.get("files", {}))


def _is_whole(directory: Path, files: dict[str, int]) -> bool:
    return not _missing(directory, files)


def _missing(directory: Path, files: dict[str, int]) -> list[str]:
    """The names of `files` that `directory` lacks or holds in another size."""
    return [name for name, size in files.items() if not _has_size(directory / name, size)]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _check(source: str, staging: Path, files: dict[str, int]) -> None:
    """The hub's library goes on without a hub that has gone away meanwhile, with whatever there is."""
    if _LAST not in files:
        raise ModelError(f"model {source!r} has no {_LAST} on the hub")
    if missing := _missing(staging, files):
        raise ModelError(f"model {source!r} is not complete after the download, {missing[0]} is missing: try again")


def _publish(staging: Path, directory: Path, mark: dict[str, object]) -> None:
    files = mark["files"]
    assert isinstance(files, dict)
    for name in sorted(files, key=lambda name: name == _LAST):
        if name == _LAST:
            (staging / MARK).write_text(json.dumps(mark, indent=2), encoding="utf-8")
            _move(staging / MARK, directory / MARK)
        _move(staging / name, directory / name)
    shutil.rmtree(staging)


def _move(source: Path, target: Path) -> None:
    """Into place only once it is on the disk: a node that loses its power must not leave a name without its content."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One download at a time; the lock goes with the process that holds it, however that ends."""
    with path.open("w") as file:
        has_waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_waited:
                    on_wait()
                has_waited = True
                time.sleep(_LOCK_POLL_S)
        yield
