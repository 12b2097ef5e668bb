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
        if self._session is not None:
            await self._session.close()
            self._session = None

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
            await self.close()
            self._credentials = None
            response = await self._send_once(method, path, params=params, body=body, read_timeout_s=read_timeout_s)
        if response.status >= 400:
            async with response:
                text = (await response.text())[:200]
            raise KubeError(response.status, text)
        return response

    async def _send_once(
        self, method: str, path: str, *, params: Mapping[str, str], body: Json | None, read_timeout_s: float
    ) -> aiohttp.ClientResponse:
        credentials = await self._open()
        headers = {"accept": "application/json", "content-type": "application/json"}
        if method == "PATCH":
            headers["content-type"] = "application/merge-patch+json"
        for setting in cast("dict[str, dict[str, str]]", credentials.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        assert self._session is not None
        try:
            return await self._session.request(
                method,
                f"{credentials.host}{path}",
                params=params,
                data=json.dumps(body) if body is not None else None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_TIMEOUT_S, sock_read=read_timeout_s),
            )
        except aiohttp.ClientError as error:
            raise KubeError(0, f"cannot reach the Kubernetes API: {error}") from error

    async def _open(self) -> client.Configuration:
        if self._credentials is None:
            self._credentials = await asyncio.to_thread(self._load)
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=_tls(self._credentials))
            self._session = aiohttp.ClientSession(connector=connector)
        return self._credentials


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
