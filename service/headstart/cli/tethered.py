"""`python -m headstart.cli.tethered COMMAND ...`: a command that ends with the process that started it.

The starter keeps the writing end of this process's stdin and never writes: the pipe ends when the starter does, however
that happens. Holds no state.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from headstart.cli import main


def _end_with_starter() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    raise SystemExit(main())
