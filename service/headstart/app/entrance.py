"""From the settings of TLS and keys to what an entrance is opened with. Holds no state."""

from __future__ import annotations

from headstart.config import ServerSettings
from headstart.edge.entrance import EntranceOptions


def entrance_options(server: ServerSettings) -> EntranceOptions:
    tenants = (name.strip() for name in server.auth.admin_tenants.split(","))
    return EntranceOptions(
        cert_file=server.tls.cert_file,
        key_file=server.tls.key_file,
        client_ca_file=server.tls.client_ca_file,
        keys_dir=server.auth.keys_dir,
        admin_tenants=frozenset(name for name in tenants if name),
        share_cache=server.auth.share_cache,
    )
