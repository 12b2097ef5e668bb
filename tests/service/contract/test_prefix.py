"""The identity of a block: golden vectors, a second implementation from the formula, and what must differ."""

import json
import struct
import subprocess
import sys
from array import array
from hashlib import sha256
from pathlib import Path

import pytest
from headstart.contract.prefix import (
    block_hashes,
    encode_extras,
    hash_root,
    hit_length,
    reads_cache,
    tenant_salt,
    wire_hash,
    wire_hashes,
)
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = json.loads((Path(__file__).parent / "golden_hashes.json").read_text())
ROOT = hash_root(GOLDEN["fields"])
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_vectors_hold(case: dict) -> None:
    root = hash_root(GOLDEN["fields"], case["fleet_secret"].encode())
    assert root.hex() == case["root"]
    extras = encode_extras(**case["extras"])
    assert extras.hex() == case["encoded_extras"]
    hashes = block_hashes(root, case["tokens"], case["block_size"], extras)
    assert [digest.hex() for digest in hashes] == case["hashes"]


@given(IDS, st.integers(1, 20), st.text(max_size=5))
def test_hashes_follow_the_written_formula(tokens: list[int], block_size: int, salt: str) -> None:
    extras = encode_extras(cache_salt=salt)
    parent, expected = ROOT, []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = b"".join(struct.pack("<I", token) for token in tokens[start : start + block_size])
        parent = sha256(parent + extras + block).digest()
        expected.append(parent)
    assert block_hashes(ROOT, tokens, block_size, extras) == expected


@given(IDS, st.integers(1, 8), st.integers(0, 9))
def test_a_chain_can_be_continued_from_any_block(tokens: list[int], block_size: int, cut: int) -> None:
    whole = block_hashes(ROOT, tokens, block_size)
    head = whole[:cut]
    rest = block_hashes(head[-1] if head else ROOT, tokens[len(head) * block_size :], block_size)
    assert head + rest == whole


def test_only_full_blocks_have_a_hash() -> None:
    assert len(block_hashes(ROOT, range(14), 4)) == 3
    assert block_hashes(ROOT, range(3), 4) == []


def test_equal_content_at_another_place_hashes_differently() -> None:
    first, second = block_hashes(ROOT, [7] * 8, 4)
    assert first != second


def test_the_root_depends_on_every_field_and_the_secret_and_not_on_their_order() -> None:
    fields = GOLDEN["fields"]
    roots = {ROOT, hash_root(fields, b"secret")} | {hash_root({**fields, name: "other"}) for name in fields}
    assert len(roots) == len(fields) + 2
    assert hash_root(dict(reversed(fields.items()))) == ROOT
    assert hash_root({"ab": "c"}) != hash_root({"a": "bc"})


def test_extras_that_join_to_the_same_text_differ() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")]
    encoded = {encode_extras(lora=lora, cache_salt=salt) for salt, lora in pairs}
    assert len(encoded) == 4
    assert encode_extras(lora="x") != encode_extras(cache_salt="x")
    assert encode_extras(lora="a", lora_digest="bc") != encode_extras(lora="ab", lora_digest="c")
    assert encode_extras() == b""


def test_ids_are_hashed_at_a_fixed_width() -> None:
    joined = [block_hashes(ROOT, tokens, 2)[0] for tokens in ([1, 23], [12, 3], [123, 0])]
    assert len(set(joined)) == 3
    assert block_hashes(ROOT, [1, 2], 2) == block_hashes(ROOT, (1, 2), 2)
    for kind in "IHq":
        assert block_hashes(ROOT, array(kind, [1, 2, 3]), 2) == block_hashes(ROOT, [1, 2, 3], 2)
    with pytest.raises(OverflowError):
        block_hashes(ROOT, [-1, 2], 2)
    with pytest.raises(OverflowError):
        block_hashes(ROOT, [2**32, 2], 2)


def test_the_first_block_hangs_on_the_root_not_on_nothing() -> None:
    assert block_hashes(bytes(32), [1, 2], 2) != block_hashes(ROOT, [1, 2], 2)


def test_another_process_computes_the_same() -> None:
    code = (
        "from headstart.contract.prefix import *;"
        "print(block_hashes(hash_root({'a': 'b'}, b's'), range(40), 16, encode_extras(cache_salt='x'))[-1].hex())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    root = hash_root({"a": "b"}, b"s")
    assert runs == {block_hashes(root, range(40), 16, encode_extras(cache_salt="x"))[-1].hex() + "\n"}


@pytest.mark.parametrize(
    ("blocks", "tokens", "expected"), [(2, 33, 32), (2, 32, 31), (0, 5, 0), (1, 16, 15), (3, 100, 48), (0, 1, 0)]
)
def test_a_hit_ends_at_least_one_token_before_the_end(blocks: int, tokens: int, expected: int) -> None:
    assert hit_length(blocks, tokens, 16) == expected


def test_only_requests_without_prompt_logprobs_read_the_cache() -> None:
    assert reads_cache(None)
    assert not reads_cache(0)
    assert not reads_cache(5)


def test_the_wire_carries_the_first_eight_bytes() -> None:
    assert wire_hash(bytes(range(1, 33))) == 0x0102030405060708
    digests = [bytes([first, *range(1, 32)]) for first in (0, 127, 255)]
    assert wire_hashes(digests) == [wire_hash(digest) for digest in digests]
    assert wire_hashes([]) == []


@given(st.text(), st.text(), st.text(), st.text())
def test_two_pairs_of_tenant_and_salt_never_give_one_salt(tenant: str, salt: str, other: str, other_salt: str) -> None:
    assert (tenant_salt(tenant, salt) == tenant_salt(other, other_salt)) == ((tenant, salt) == (other, other_salt))


def test_where_the_tenant_ends_and_its_salt_begins_cannot_be_moved() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("a", "b\0c"), ("a\0b", "c")]
    assert len({tenant_salt(*pair) for pair in pairs}) == len(pairs)
    assert tenant_salt("t1", "") == sha256(b"headstart/tenant/1\0" + b"\x02\0\0\0t1" + bytes(4)).hexdigest()
