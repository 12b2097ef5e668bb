"""Uniform random numbers that depend on nothing but (seed, choice index, position).

Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), as in the Random123
library: a keyed bijection of a counter, so there is no state to keep, to reset or to share between requests. The seed
is the key, the position and the choice index are the counter.

Knows nothing of requests or logits. Owns no state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UintArray = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_NUM_ROUNDS = 10
_WORD_MASK = (1 << 64) - 1


def philox4x32(counter: UintArray, key: UintArray) -> UintArray:
    """Encrypt `counter` [4, n] under `key` [2, n]. All words are 32 bits wide, held in uint64. Returns [4, n]."""
    c0, c1, c2, c3 = counter
    for _ in range(_NUM_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ key[0],
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ key[1],
            product0 & _LOW,
        )
        key = (key + _WEYL) & _LOW
    return np.stack((c0, c1, c2, c3))


def uniform(seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, choice index, absolute position): float64 [n] with 53 random bits.

    Seeds are taken modulo 2**64, so that negative ones are fine; choices and positions are not negative.
    """
    seed = np.array([value & _WORD_MASK for value in seeds], np.uint64)
    choice = np.array(choices, np.uint64)
    position = np.array(positions, np.uint64)
    counter = np.stack((position & _LOW, position >> _SHIFT, choice & _LOW, choice >> _SHIFT))
    words = philox4x32(counter, np.stack((seed & _LOW, seed >> _SHIFT)))
    bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))
    numbers: npt.NDArray[np.float64] = bits * 2.0**-53
    return numbers
