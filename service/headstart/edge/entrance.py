"""How a process lets others in: TLS and keys for all its ports for requests, kept up to date with their files.

Off unless files are named. Knows nothing of servers; they ask it for what they need. Owner of its state: whoever
started it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.edge.access import Gate
from headstart.edge.keys import KeyRing
from headstart.edge.tls import NamedFile, ServerTls, open_server_tls

_REFRESH_S = 1.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntranceOptions:
    """The settings `server.tls` and `server.auth`, as plain values; "" names no file."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    keys_dir: str = ""
    admin_tenants: frozenset[str] = frozenset({"operator"})
    share_cache: bool = False


class Entrance:
    """`tls` is None for plain ports, `gate` where everybody may come in. Raises ConfigError that names the setting."""

    def __init__(self, options: EntranceOptions) -> None:
        self.tls: ServerTls | None = open_server_tls(
            NamedFile("server.tls.cert_file", options.cert_file),
            NamedFile("server.tls.key_file", options.key_file),
            NamedFile("server.tls.client_ca_file", options.client_ca_file),
        )
        self.gate: Gate | None = None
        self._refreshed: list[Callable[[], None]] = [self.tls.refresh] if self.tls is not None else []
        self._refreshing: asyncio.Task[None] | None = None
        if options.keys_dir:
            self._ask_for_keys(options)

    def start(self) -> None:
        """Look after the files from now on, if there are any."""
        if self._refreshed:
            self._refreshing = asyncio.create_task(self._keep_fresh(), name="refresh keys and certificates")

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    def refresh(self) -> None:
        """Take what has changed in the files. Reads them: not for the event loop."""
        for refresh in self._refreshed:
            refresh()

    def _ask_for_keys(self, options: EntranceOptions) -> None:
        keys = KeyRing(Path(options.keys_dir))
        self._refreshed.append(keys.refresh)
        self.gate = Gate(keys, admin_tenants=options.admin_tenants, share_cache=options.share_cache)
        admins = ", ".join(sorted(options.admin_tenants)) or "nobody"
        _LOGGER.info("every call needs a key: there are %d tenants, admins: %s", keys.num_tenants, admins)
        if self.tls is None:
            _LOGGER.warning("keys are asked for without TLS: anyone on the way can read them, unless a mesh encrypts")

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                await asyncio.to_thread(self.refresh)
            except Exception:
                # Whatever it is, what is in use stays in use, and the next look may go well.
                _LOGGER.exception("keys and certificates could not be looked at")
