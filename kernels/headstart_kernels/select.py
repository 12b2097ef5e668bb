"""Which attention backend serves a request for one. Knows only names; the backends import their own libraries."""

from __future__ import annotations

REFERENCE = "reference"

AUTO = "auto"


def select_backend(requested: str) -> str:
    """The backend that `requested` ("auto" or a name) stands for. Raises ValueError for one that is not built in."""
    if requested in (AUTO, REFERENCE):
        return REFERENCE
    raise ValueError(f"attention backend {requested!r} is not in this build: use {AUTO!r} or {REFERENCE!r}")
