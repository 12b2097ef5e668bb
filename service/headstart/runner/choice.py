"""One token out of a row of scores: temperature, top-k, top-p, min-p and the draw, in this order.

The draw inverts the cumulative distribution of the kept tokens in the order of their ids. It takes one random number
a token where the Gumbel trick takes one per vocabulary entry, needs no sort of the vocabulary, and is exactly
reproducible: the same scores and the same number give the same token. Everything that decides is float64.

Knows nothing of requests, batches or seeds. Owns no state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstart.contract.request import SamplingParams
from headstart.errors import InternalError

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

NO_CHOICE = "the request's own parameters leave no token to choose"
_PEAK_CHUNK = 64
_BANDS_PER_UNIT = 4
_MAX_BAND = 255
_DRAW_CHUNK = 256


def choose(scores: FloatArray, sampling: SamplingParams, number: float) -> int:
    """The token id for `scores` [vocab] (-inf: never) and a random number in [0, 1).

    `temperature == 0` is the largest score, the lowest id among equals. top-p looks at the distribution that top-k
    left; min-p compares with the most likely token. The most likely token always stays. Raises InternalError when
    the largest score is not finite.
    """
    best = int(np.argmax(scores))
    peak = scores[best]
    if not np.isfinite(peak):
        raise InternalError(NO_CHOICE)
    if sampling.temperature == 0:
        return best
    ids: IndexArray | None = None
    if 0 < sampling.top_k < len(scores):
        ids = largest(scores, sampling.top_k)
        scores = scores[ids]
    with np.errstate(over="ignore", under="ignore"):
        gaps = (peak - scores) / sampling.temperature
        weights = np.exp(-gaps)
    if sampling.top_p < 1:
        kept = _nucleus(gaps, weights, sampling.top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if sampling.min_p > 0:
        weights = np.where(weights >= sampling.min_p, weights, 0.0)
    index = _draw(weights, number)
    return index if ids is None else int(ids[index])


def largest(values: npt.NDArray[np.floating], count: int) -> IndexArray:
    """Indices of the `count` largest values, ascending; among equals at the border the lowest indices. [count]

    The largest values of `count` different chunks are `count` candidates, so nothing below the smallest of them is
    wanted: only what reaches it is looked at closely.
    """
    if count >= len(values):
        return np.arange(len(values))
    candidates = np.arange(len(values))
    peaks = np.maximum.reduceat(values, np.arange(0, len(values), _PEAK_CHUNK))
    if count < len(peaks):
        candidates = np.flatnonzero(values >= _nth_largest(peaks, count))
    reached = values[candidates]
    threshold = _nth_largest(reached, count)
    above = candidates[reached > threshold]
    ties = candidates[reached == threshold][: count - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _nth_largest(values: npt.NDArray[np.floating], rank: int) -> np.floating:
    border = len(values) - rank
    nth: np.floating = np.partition(values, border)[border]
    return nth


def _nucleus(gaps: FloatArray, weights: FloatArray, top_p: float) -> IndexArray:
    """Ascending indices of the fewest most likely tokens (lowest ids first among equals) that reach `top_p` of the sum.

    `gaps` [n] are the distances from the best score, `weights` [n] = exp(-gaps). Tokens are put into bands of like
    distance; only the band in which the sum is reached is sorted.
    """
    bands = np.minimum(gaps * _BANDS_PER_UNIT, _MAX_BAND).astype(np.int64)
    reached = np.cumsum(np.bincount(bands, weights))
    target = top_p * reached[-1]
    border = int(np.searchsorted(reached, target))
    members = np.flatnonzero(bands == border)
    members = members[np.argsort(gaps[members], kind="stable")]
    sums = np.cumsum(weights[members]) + (reached[border - 1] if border else 0.0)
    is_kept = bands < border
    is_kept[members[: np.searchsorted(sums, target) + 1]] = True
    return np.flatnonzero(is_kept)


def _draw(weights: FloatArray, number: float) -> int:
    """The first index whose cumulative weight exceeds `number` of the sum. An index of weight 0 is never drawn.

    Chunks are summed first and only the chunk that holds the point is cumulated: a running sum over a whole
    vocabulary is the slowest part of sampling.
    """
    chunks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _DRAW_CHUNK)))
    point = number * chunks[-1]
    chunk = int(np.searchsorted(chunks, point, side="right"))
    if chunk:
        point -= chunks[chunk - 1]
    start = chunk * _DRAW_CHUNK
    cumulative = np.cumsum(weights[start : start + _DRAW_CHUNK])
    index = int(np.searchsorted(cumulative, point, side="right"))
    if index == len(cumulative):
        # Chunk sums round differently from running sums: the point may lie a last bit beyond the chunk.
        index = int(np.searchsorted(cumulative, cumulative[-1]))
    return start + index
