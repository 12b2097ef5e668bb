"""Random numbers: golden vectors of Random123, and what the key must keep apart."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.runner.philox import philox4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_cipher_gives_the_known_answers_of_random123(counter, key, expected):
    words = philox4x32(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
    assert tuple(words[:, 0].tolist()) == expected


def test_the_numbers_of_a_key_never_change():
    numbers = uniform([0, 1, -1, 2**64 - 1], [0, 0, 3, 3], [0, 5, 1 << 33, 1 << 33]).tolist()
    assert numbers == [0.3990464708489645, 0.1602782174701749, 0.2773694038675244, 0.2773694038675244]


def test_seed_choice_and_position_each_change_the_number():
    keys = [(s, c, p) for s in (0, 1, 1 << 40) for c in (0, 1, 2) for p in (0, 1, 1 << 20, 1 << 33)]
    assert len(set(uniform(*zip(*keys, strict=True)).tolist())) == len(keys)


def test_a_number_does_not_depend_on_its_neighbours_in_the_call():
    seeds, choices, positions = list(range(40)), [i % 3 for i in range(40)], list(range(100, 140))
    alone = [uniform([s], [c], [p])[0] for s, c, p in zip(seeds, choices, positions, strict=True)]
    assert uniform(seeds, choices, positions).tolist() == alone


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_numbers_fill_the_unit_interval_evenly_along_each_part_of_the_key(axis):
    columns = [[7] * 20_000, [0] * 20_000, [3] * 20_000]
    columns[axis] = list(range(20_000))
    numbers = uniform(*columns)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.all(np.abs(counts - 1000) < 150)
