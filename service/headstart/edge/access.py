"""Who may come in: the key that every call brings, what its tenant may call, and which cached prefixes it may find.

One `Gate` stands before gRPC (`AuthInterceptor`) and HTTP (`guard`). Behind it a request carries the cache salt that
is in effect, so nothing further in knows of tenants. Holds no state but the key ring, whose owner refreshes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from aiohttp import web
from aiohttp.typedefs import Middleware

from headstart.contract.prefix import tenant_salt
from headstart.edge.interceptor import abort
from headstart.edge.keys import KeyRing
from headstart.edge.limits import MAX_CACHE_SALT_BYTES
from headstart.edge.validation import check_cache_salt
from headstart.errors import HeadstartError, PermissionDeniedError, UnauthenticatedError

HEADER = "authorization"

# A kubelet has no key, and whether a server lives is no secret.
OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
# A cache's events and lookups tell what others ask, a reset hurts all: for those who run the pods.
ADMIN_SERVICES = frozenset({"headstart.v1.PrefixCache", "headstart.v1.Router"})

_SCHEME = "bearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whom a key names. `keeps_salt`: its cache salts are taken as they are."""

    tenant: str
    is_admin: bool
    keeps_salt: bool

    def admit(self, request: Any) -> Any:
        """The request, changed to what this caller may ask: with the salt in effect. Raises InvalidRequestError."""
        if not self.keeps_salt and "cache_salt" in request.DESCRIPTOR.fields_by_name:
            check_cache_salt(request.cache_salt, MAX_CACHE_SALT_BYTES)
            request.cache_salt = tenant_salt(self.tenant, request.cache_salt)
        return request


CALLER = web.RequestKey("caller", Caller)
"""Where an HTTP request keeps its caller, when keys are asked for."""


class Gate:
    """Knows callers by their keys. `admin_tenants` may call everything and write salts as they like."""

    def __init__(self, keys: KeyRing, *, admin_tenants: frozenset[str], share_cache: bool) -> None:
        self._keys = keys
        self._admin_tenants = admin_tenants
        self._share_cache = share_cache

    def caller(self, authorization: Iterable[object]) -> Caller:
        """Whom the values of the header name. Raises UnauthenticatedError."""
        values = list(authorization)
        if not values:
            raise UnauthenticatedError("authorization: no key; send it as 'Bearer KEY'")
        scheme, _, key = str(values[0]).partition(" ")
        if len(values) > 1 or scheme.lower() != _SCHEME:
            raise UnauthenticatedError("authorization: expected once, as 'Bearer KEY'")
        tenant = self._keys.tenant_of(key.strip())
        if tenant is None:
            raise UnauthenticatedError("authorization: this key is not known here")
        is_admin = tenant in self._admin_tenants
        return Caller(tenant=tenant, is_admin=is_admin, keeps_salt=is_admin or self._share_cache)

    def rpc_caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """Whom a call's metadata names. Raises UnauthenticatedError."""
        return self.caller(value for name, value in metadata or () if name == HEADER)


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Stands inside `StatusInterceptor`. A call that is refused never reaches its handler, nor is its message read."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        service = str(handler_call_details.method).lstrip("/").partition("/")[0]
        if handler is None or service in OPEN_SERVICES:
            return handler
        try:
            caller = self._gate.rpc_caller(handler_call_details.invocation_metadata)
            if service in ADMIN_SERVICES and not caller.is_admin:
                raise PermissionDeniedError(f"{service}: only tenants that run the pods may call it")
        except HeadstartError as error:
            return _refusing(handler, error)
        return handler if handler.request_streaming else _admitting(handler, caller)


def guard(gate: Gate) -> Middleware:
    """A middleware that lets requests with a known key pass, and probes."""

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if resource is None or resource.canonical not in OPEN_PATHS:
            request[CALLER] = gate.caller(request.headers.getall(HEADER, ()))
        return await handler(request)

    return check


def _admitting(handler: Any, caller: Caller) -> Any:
    """The handler behind what `caller` may ask."""
    make, inner = _parts(handler)

    async def behavior(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return await inner(caller.admit(request), context)

    return make(
        behavior,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _refusing(handler: Any, error: HeadstartError) -> Any:
    """A handler of the same kind that ends every call with `error`."""
    make, _ = _parts(handler)

    async def behavior(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ARG001
        await abort(context, error)

    return make(behavior)


def _parts(handler: Any) -> tuple[Callable[..., Any], Any]:
    """What makes a handler of this kind, and what it runs."""
    kind = ("stream" if handler.request_streaming else "unary") + "_"
    kind += "stream" if handler.response_streaming else "unary"
    return getattr(grpc, f"{kind}_rpc_method_handler"), getattr(handler, kind)
