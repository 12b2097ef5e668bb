"""The settings of encryption and of API keys, and how one setting is written down.

They are leaves of the tree in `config`, which reads them. Whether files exist and fit each other is judged where they
are opened. Holds no state.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


def option(default: object, flag: str | None, help_text: str, **limits: Any) -> Any:
    """One setting: its default, its flag (None: none), what it means, and the range that it must lie in."""
    return Field(
        default,
        description=help_text,
        json_schema_extra={"flag": flag} if flag else None,
        allow_inf_nan=False if isinstance(default, float) else None,
        **limits,
    )


class ServerTlsSettings(BaseModel, frozen=True, extra="forbid"):
    cert_file: str = option(
        "",
        "--ssl-certfile",
        "PEM certificate chain. With key_file it turns TLS on for gRPC and HTTP; health and metrics stay plain.",
    )
    key_file: str = option("", "--ssl-keyfile", "PEM private key of the certificate, without a pass phrase.")
    client_ca_file: str = option(
        "", "--ssl-ca-certs", "PEM certificates that a client's own must come from; when set, each client needs one."
    )


class AuthSettings(BaseModel, frozen=True, extra="forbid"):
    keys_dir: str = option(
        "",
        "--api-keys-dir",
        "Folder with one file per tenant: its name is the tenant's, each line a key. Every call then needs a key.",
    )
    admin_tenants: str = option(
        "operator",
        None,
        "Tenants, between commas, that may call PrefixCache and Router, and whose cache salts are taken as they are.",
    )
    share_cache: bool = option(False, None, "Tenants trust each other: one's cached prefixes serve the others.")


class PodTlsSettings(BaseModel, frozen=True, extra="forbid"):
    ca_file: str = option("", None, "PEM certificates that the pods' own must come from; it turns TLS to pods on.")
    cert_file: str = option("", None, "PEM certificate that the router shows to pods.")
    key_file: str = option("", None, "PEM private key of that certificate.")
    server_name: str = option("", None, "The name in the pods' certificates: pods are called by their addresses.")
