"""Names that gRPC's metadata can hold, and what becomes of others."""

from __future__ import annotations

import socket

import pytest
from headstart.edge.names import in_metadata, pod_name, pod_uid
from headstart.errors import ConfigError


def test_a_process_is_called_what_its_variable_says_else_what_its_host_is_called() -> None:
    assert pod_name({"POD_NAME": "engine-7f9c.ns"}) == "engine-7f9c.ns"
    assert pod_name({"POD_NAME": ""}) == pod_name({}) == socket.gethostname()
    assert pod_name({}, port=50061) == f"{socket.gethostname()}:50061"
    assert pod_name({"POD_NAME": "engine"}, port=50061) == "engine"
    assert pod_uid({}) == ""


@pytest.mark.parametrize("name", ["é", "bad\nname", "two words", "\udcff", "a" * 254])
def test_a_name_that_no_trailer_could_hold_is_refused_with_its_variable(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^POD_NAME: ") as refused:
        pod_name({"POD_NAME": name})
    assert str(refused.value).isascii()
    with pytest.raises(ConfigError, match=r"^POD_UID: "):
        pod_uid({"POD_UID": name})


def test_a_name_from_elsewhere_is_escaped_and_a_plain_one_is_left_alone() -> None:
    assert in_metadata("10.0.0.1:50051") == "10.0.0.1:50051"
    assert in_metadata("pöd\n") == "p%C3%B6d%0A"
