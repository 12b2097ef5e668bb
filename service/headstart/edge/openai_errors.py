"""Errors of our tree as OpenAI's: the HTTP status, the body, and what the headers add. Holds no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.edge.openai_requests import openai_param
from headstart.errors import (
    HeadstartError,
    InvalidRequestError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)

_HTTP_STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# Where OpenAI's word is another than the status'.
_CODES: Mapping[str, str] = {"INVALID_ARGUMENT": "invalid_value", "UNAUTHENTICATED": "invalid_api_key"}
_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def http_status(error: HeadstartError) -> int:
    """The HTTP status of an error; 500 for what has no better one."""
    if isinstance(error, TooLargeError):
        return 413
    return _HTTP_STATUSES.get(error.status, 500)


def error_body(error: HeadstartError) -> dict[str, Any]:
    """The JSON that clients of OpenAI turn into their exceptions."""
    status = http_status(error)
    param = openai_param(error.field) if isinstance(error, InvalidRequestError) else None
    message = f"{param}: {error.reason}" if isinstance(error, InvalidRequestError) else str(error)
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error.status, error.status.lower())
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_headers(error: HeadstartError) -> dict[str, str]:
    """When to come back: in seconds for everybody, in milliseconds for OpenAI's clients. Or that a key is wanted."""
    if isinstance(error, UnauthenticatedError):
        return {"WWW-Authenticate": "Bearer"}
    if not isinstance(error, UnavailableError):
        return {}
    retry_after_ms = round(error.retry_after_s * 1000)
    return {"Retry-After": str(-(-retry_after_ms // 1000)), "retry-after-ms": str(retry_after_ms)}
