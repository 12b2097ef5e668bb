"""The one tree of errors that this project raises on purpose.

Each class carries the name of the gRPC status that it becomes; `edge` does the mapping in one place. An error's text
goes to the caller, so it says what to do and never holds a path, a class name or another tenant's words.
"""

from __future__ import annotations


class HeadstartError(Exception):
    """Root of the tree. `status` is a `grpc.StatusCode` name."""

    status = "INTERNAL"


class InvalidRequestError(HeadstartError):
    """The caller's input is wrong. `field` names the offending request field, as spelt in the proto."""

    status = "INVALID_ARGUMENT"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLargeError(InvalidRequestError):
    """`field` has more bytes than any request that could be served, so it was not looked into."""


class UnauthenticatedError(HeadstartError):
    """No key, or none that is known. The text never says which part of a key was right."""

    status = "UNAUTHENTICATED"


class PermissionDeniedError(HeadstartError):
    """The key is known, and its tenant may not do this."""

    status = "PERMISSION_DENIED"


class NotFoundError(HeadstartError):
    """A model or an adapter of this name is not served here."""

    status = "NOT_FOUND"


class AlreadyExistsError(HeadstartError):
    """A request of this id is still running."""

    status = "ALREADY_EXISTS"


class UnavailableError(HeadstartError):
    """Not now: the queue is full, the model is loading, or the pod drains. Another pod may serve it."""

    status = "UNAVAILABLE"

    def __init__(self, reason: str, *, retry_after_s: float = 0.1) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class ResourceExhaustedError(HeadstartError):
    """A tenant's quota is used up. Unlike UNAVAILABLE, another pod would not help."""

    status = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(HeadstartError):
    """The state does not allow it, and retrying alone will not help."""

    status = "FAILED_PRECONDITION"


class DeadlineExceededError(HeadstartError):
    """The request's deadline passed before it could finish."""

    status = "DEADLINE_EXCEEDED"


class UnimplementedError(HeadstartError):
    """A field or a method that the contract names and this build does not offer."""

    status = "UNIMPLEMENTED"


class InternalError(HeadstartError):
    """A fault of ours that ended this request; the pod goes on."""

    status = "INTERNAL"


class ConfigError(HeadstartError):
    """Settings that cannot work. Raised at start-up only; the text names the key and the nearest valid one."""


class ModelError(HeadstartError):
    """A model directory or file that cannot be loaded. Raised at start-up only."""
