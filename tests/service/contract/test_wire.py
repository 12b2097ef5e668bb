"""Reading encoded messages without parsing them gives what parsing gives."""

from __future__ import annotations

from array import array

import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.wire import largest_id, outer_fields, unpack_ids
from headstart.errors import InvalidRequestError
from hypothesis import given
from hypothesis import strategies as st

EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1]


def packed(ids: list[int]) -> bytes:
    encoded = pb.TokenIds(ids=ids).SerializeToString()
    return b"".join(encoded[field.content : field.stop] for field in outer_fields(encoded))


@given(st.lists(st.sampled_from(EDGES) | st.integers(0, 2**28 - 1)))
def test_packed_ids_are_read_as_the_library_reads_them(ids: list[int]) -> None:
    assert unpack_ids(packed(ids)) == array("I", ids)
    assert largest_id(array("I", ids)) == max(ids, default=0)
    assert largest_id(array("I", [*ids, 1]) * 1024) == max([*ids, 1])


@given(st.lists(st.integers(0, 2**28 - 1)), st.integers(2**28, 2**32 - 1))
def test_ids_too_large_for_a_vocabulary_are_left_to_the_library(ids: list[int], large: int) -> None:
    assert unpack_ids(packed([*ids, large, *ids])) is None


def test_outer_fields_lie_where_they_were_written() -> None:
    parts = {
        "model": pb.GenerateRequest(model="m" * 200).SerializeToString(),
        "token_ids": pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300])).SerializeToString(),
        "max_tokens": pb.GenerateRequest(max_tokens=1000).SerializeToString(),
    }
    raw = b"".join(parts.values())
    names = pb.GenerateRequest.DESCRIPTOR.fields_by_number
    fields = list(outer_fields(raw))
    assert {names[field.number].name: raw[field.start : field.stop] for field in fields} == parts
    assert raw[fields[0].content : fields[0].stop] == b"m" * 200


@pytest.mark.parametrize("raw", [b"\x0a", b"\x0a\x05abc", b"\x80" * 11, b"\x0b", b"\x09\x00"])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not a message"):
        list(outer_fields(raw))
