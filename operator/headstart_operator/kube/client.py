"""A thin way to the Kubernetes API: JSON in, JSON out. Credentials are found and renewed by the official client.

Objects stay plain dictionaries: typed models cost memory and break on fields that are newer than they are. Knows
nothing of pods or leases. Owner of its state: one HTTP session, used from one event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import aiohttp
from kubernetes import client, config

Json = dict[str, Any]

_REQUEST_TIMEOUT_S = 30.0
_PAGE_SIZE = 500
_MAX_LINE_BYTES = 16 * 1024 * 1024


class KubeError(Exception):
    """The API did not do it. `code` is an HTTP status: 410 means "list again"; 0 that no answer could be read."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


def load_credentials(api_url: str = "") -> client.Configuration:
    """As the official client finds them: in the pod, else the kubeconfig. `api_url` is for a server without any."""
    if api_url:
        return client.Configuration(host=api_url)
    found = client.Configuration()
    try:
        config.load_incluster_config(found)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config(client_configuration=found)  # type: ignore[no-untyped-call]
    return found


class KubeClient:
    """`load` is asked for credentials at the start and again when the API refuses them, as after a rotation."""

    def __init__(self, load: Callable[[], client.Configuration] = load_credentials) -> None:
        self._load = load
        self._credentials: client.Configuration | None = None
        self._session: aiohttp.ClientSession | None = None

    async def list_all(self, path: str, params: Mapping[str, str]) -> tuple[list[Json], str]:
        """All items of a collection, page by page, and the resource version to watch from. Raises KubeError."""
        items: list[Json] = []
        token = ""
        while True:
            page = {"limit": str(_PAGE_SIZE)} | ({"continue": token} if token else {})
            body = await self.request("GET", path, params={**params, **page})
            items += body.get("items") or []
            metadata = body.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return items, metadata.get("resourceVersion") or ""

    async def watch(self, path: str, params: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[Json, None]:
        """Events of a collection until the server ends the watch. Raises KubeError; TimeoutError when it is silent."""
        params = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        response = await self._send("GET", path, params=params, read_timeout_s=silence_s)
        async with response, aclosing(_lines(response)) as lines:
            async for line in lines:
                event = _parse(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise KubeError(int(status.get("code") or 500), str(status.get("reason") or "watch error"))
                yield event

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """One call. A PATCH is a JSON merge patch. Raises KubeError."""
        async with await self._send(method, path, params=params or {}, body=body) as response:
            try:
                return _parse(await response.read())
            except aiohttp.ClientError as error:
                raise KubeError(0, f"the answer broke off: {error}") from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: Json | None = None,
        read_timeout_s: float = _REQUEST_TIMEOUT_S,
    ) -> aiohttp.ClientResponse:
        response = await self._send_once(method, path, params=params, body=body, read_timeout_s=read_timeout_s)
        if response.status == 401:
            response.release()
            self._credentials = None
            await self.close()
            response = await self._send_once(method, path, params=params, body=body, read_timeout_s=read_timeout_s)
        if response.status >= 400:
            raise KubeError(response.status, await _reason(response))
        return response

    async def _send_once(
        self, method: str, path: str, *, params: Mapping[str, str], body: Json | None, read_timeout_s: float
    ) -> aiohttp.ClientResponse:
        session, host, proof = await self._open()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            return await session.request(
                method,
                f"{host}{path}",
                params=params,
                data=json.dumps(body) if body is not None else None,
                headers={"accept": "application/json", "content-type": kind, **proof},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_TIMEOUT_S, sock_read=read_timeout_s),
            )
        except aiohttp.ClientError as error:
            raise KubeError(0, f"cannot reach the Kubernetes API: {error}") from error

    async def _open(self) -> tuple[aiohttp.ClientSession, str, dict[str, str]]:
        """A session, the API's address, and the headers that say who we are. Raises KubeError."""
        try:
            if self._credentials is None:
                self._credentials = await asyncio.to_thread(self._load)
            credentials = self._credentials
            # A token that has expired is read anew by this.
            settings = cast("dict[str, dict[str, str]]", credentials.auth_settings())
            if self._session is None:
                connector = aiohttp.TCPConnector(ssl=_tls(credentials))
                self._session = aiohttp.ClientSession(connector=connector)
        except Exception as error:
            # Files may be unreadable while they are replaced, in as many ways as there are forms of credentials.
            raise KubeError(0, f"the credentials cannot be read: {error}") from error
        return self._session, credentials.host, {each["key"]: each["value"] for each in settings.values()}


async def _reason(response: aiohttp.ClientResponse) -> str:
    async with response:
        try:
            return (await response.text(errors="replace"))[:200]
        except aiohttp.ClientError:
            return response.reason or ""


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Whole lines of a stream; an object may be longer than the reader's own limit for lines."""
    rest = b""
    try:
        async for part in response.content.iter_any():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                if line.strip():
                    yield line
            if len(rest) > _MAX_LINE_BYTES:
                raise KubeError(0, "an event of more than 16 MiB")
    except aiohttp.ServerTimeoutError as error:
        raise TimeoutError("the watch went silent") from error
    except aiohttp.ClientError as error:
        raise KubeError(0, f"the watch broke: {error}") from error


def _parse(text: bytes) -> Json:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise KubeError(0, "an answer that is no JSON") from error
    if not isinstance(parsed, dict):
        raise KubeError(0, "an answer that is no object")
    return parsed


def _tls(credentials: client.Configuration) -> ssl.SSLContext | bool:
    if not credentials.host.startswith("https"):
        return True
    context = ssl.create_default_context(cafile=credentials.ssl_ca_cert)
    if not credentials.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.cert_file:
        context.load_cert_chain(credentials.cert_file, credentials.key_file)
    return context
