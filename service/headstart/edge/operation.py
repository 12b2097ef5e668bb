"""Which of GenAI's operations a request is, also where only its token ids arrive: a router says it to its pods.

One of a closed set, because it is a label of metrics. Knows nothing of spans. Holds no state.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.access import Gate

OPERATION_KEY = "headstart-operation"

_OPERATIONS = ("chat", "text_completion")


def operation_of(request: pb.GenerateRequest) -> str:
    """By the form of its prompt."""
    return "chat" if request.WhichOneof("prompt") == "chat" else "text_completion"


def told_operation(metadata: Iterable[tuple[str, str | bytes]] | None, gate: Gate | None) -> str:
    """What the caller says that it was; "" when it says nothing known, or where keys tell that it is no router.

    Raises UnauthenticatedError as `gate` does.
    """
    pairs = tuple(metadata or ())
    told = next((value for key, value in pairs if key == OPERATION_KEY), "")
    if told not in _OPERATIONS or (gate is not None and not gate.rpc_caller(pairs).is_admin):
        return ""
    return str(told)
