"""The command line: one program, one module per group of commands, imported only when it is asked for.

Exit codes: 0 done, 1 the other side refused or failed, 2 wrong use or settings that cannot work, 130 interrupted.
Nothing here holds state; what a command needs, its module builds and drops.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

from headstart.errors import HeadstartError

# The disk, a quota or a file's limit is full, or the terminal is gone.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

# command -> (module with `configure` and `run`, one line of help)
_COMMANDS = {
    "serve": ("headstart.cli.serve", "run one pod: gRPC on one engine"),
    "route": ("headstart.cli.route", "run the operator: one endpoint in front of many pods"),
    "demo": ("headstart.cli.demo", "inside one pod, then two pods and a router: what was cached, what that is worth"),
    "generate": ("headstart.cli.generate", "send one prompt to a pod and stream the answer"),
    "chat": ("headstart.cli.chat", "talk to a pod, turn by turn"),
    "tokenize": ("headstart.cli.tokenize", "the token ids that a pod makes of a text"),
    "cache": ("headstart.cli.cache", "what a pod's prefix cache holds, and whether the operator knows it"),
    "bench": (
        "headstart.cli.bench",
        "figures of this machine and of simulated fleets, with one JSON line for programs",
    ),
    "download": ("headstart.cli.download", "a model of the Hugging Face hub into a folder that pods read"),
    "config": ("headstart.cli.config", "the settings in effect, their schema, their documentation"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors go to stderr as one short text, never as a traceback."""
    if os.getpid() == 1:
        _heed_end()
    arguments = list(sys.argv[1:] if argv is None else argv)
    _take_any_text()
    # gRPC's C core writes its own lines past every logging set-up: only what is wrong, unless somebody wants more.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        try:
            return _run(arguments)
        finally:
            _flush()
    except HeadstartError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _drop_output()
        return _fail(f"cannot write: {error.strerror}", 1)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        return _print_version()
    name, *rest = arguments
    if name not in _COMMANDS:
        return _fail(f"no such command: {name}{nearest(name, list(_COMMANDS))}; try headstart --help", 2)
    return run_command(name, *_COMMANDS[name], rest)


def _heed_end() -> None:
    """End at a SIGTERM until a command asks for it: the kernel gives a container's first process no other."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def _take_any_text() -> None:
    """A terminal that cannot show a character of an answer shows a question mark for it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flush() -> None:
    """What is still to be written fails here, where it can be told, not when the interpreter ends."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _drop_output() -> None:
    """Nobody gets what is left: the interpreter must not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file has nothing left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_command(name: str, module_name: str, summary: str, arguments: list[str]) -> int:
    """Parse what stands after the command's name and run its module; wrong use raises SystemExit(2)."""
    gc.disable()  # what imports make stays: looking through it for garbage would be a tenth of their time
    module = importlib.import_module(module_name)
    gc.enable()
    parser = argparse.ArgumentParser(
        prog=f"headstart {name}", description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    module.configure(parser)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        parser.error(f"no such argument: {unknown[0]}{nearest(unknown[0].partition('=')[0], flags)}")
    return int(module.run(parsed))


def _overview() -> str:
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in _COMMANDS.items()]
    return "usage: headstart COMMAND [options]\n\n" + "\n".join(lines) + "\n\nheadstart COMMAND --help says more."


def _print_version() -> int:
    from importlib.metadata import version

    print(f"headstart {version('headstart')}")
    return 0


def nearest(name: str, valid: list[str]) -> str:
    """ " (did you mean X?)" for the word or flag closest to `name`; empty when none is close."""
    import difflib

    by_word = {word.lstrip("-"): word for word in valid}
    matches = difflib.get_close_matches(name.lstrip("-"), list(by_word), n=1, cutoff=0.7)
    return f" (did you mean {by_word[matches[0]]}?)" if matches else ""


def _fail(text: str, code: int) -> int:
    print(f"headstart: {text}", file=sys.stderr)
    return code
