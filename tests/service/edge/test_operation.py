"""What a request is taken for in telemetry where only its ids arrive, and whose word is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.access import Gate
from headstart.edge.keys import KeyRing
from headstart.edge.operation import OPERATION_KEY, operation_of, told_operation


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    for tenant in ("operator", "alice"):
        (tmp_path / tenant).write_text(f"the-key-of-{tenant}-0123456789")
    return Gate(KeyRing(tmp_path), admin_tenants=frozenset({"operator"}), share_cache=False)


def told(operation: str, tenant: str = "operator") -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer the-key-of-{tenant}-0123456789"), (OPERATION_KEY, operation))


def test_the_form_of_the_prompt_says_what_a_request_is() -> None:
    assert operation_of(pb.GenerateRequest(chat=pb.Chat())) == "chat"
    assert operation_of(pb.GenerateRequest(text="x")) == "text_completion"
    assert operation_of(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]))) == "text_completion"


def test_a_routers_word_is_taken_and_no_other_tenants(gate: Gate) -> None:
    assert told_operation(told("chat"), gate) == "chat"
    assert told_operation(told("chat", "alice"), gate) == ""
    assert told_operation(told("chat", "alice"), None) == "chat"
    assert told_operation((), gate) == told_operation(None, None) == ""


def test_what_is_none_of_the_known_operations_is_not_taken(gate: Gate) -> None:
    assert told_operation(told("chats"), gate) == ""
    assert told_operation(told(""), None) == ""
