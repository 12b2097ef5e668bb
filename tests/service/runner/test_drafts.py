"""Prompt lookup: what follows the longest suffix that occurred before."""

from __future__ import annotations

import numpy as np
import pytest
from headstart.runner.drafts import propose


@pytest.mark.parametrize(
    ("token_ids", "max_drafts", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 2, [4, 8]),  # the most recent of equals
        ([0, 1, 2, 3, 9, 7, 1, 2, 4, 0, 1, 2], 2, [3, 9]),  # the longer match, though it is older
        ([1, 2, 3, 1, 2], 7, [3, 1, 2, 3, 1, 2, 3]),  # the text ends: go on with the period
        ([6, 6, 6], 3, [6, 6, 6]),
        ([1, 2, 3, 4], 3, []),
        ([2, 1, 3, 1], 3, []),  # one token alone is no match
        ([1, 2, 1, 2], 0, []),
        ([1, 2, 1, 2], -1, []),
        ([1], 3, []),
        ([], 3, []),
    ],
)
def test_proposals_are_what_followed_the_suffix_before(token_ids, max_drafts, expected):
    assert propose(np.array(token_ids, np.int32), max_drafts) == expected


def test_suffixes_longer_than_the_limit_count_as_equal():
    token_ids = np.array([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], np.int32)
    assert propose(token_ids, 1, max_ngram=2) == [8]
    assert propose(token_ids, 1, max_ngram=3) == [7]


def test_a_single_token_matches_when_it_is_allowed_to():
    assert propose(np.array([2, 1, 3, 1], np.int32), 1, min_ngram=1) == [3]


def test_proposals_agree_with_a_search_written_out():
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.integers(0, 3, rng.integers(1, 30)).tolist()
        assert propose(np.array(ids, np.int32), 5) == _by_search(ids, 5)


def _by_search(ids, max_drafts):
    for size in (4, 3, 2):
        for start in range(len(ids) - size - 1, -1, -1):
            if ids[start : start + size] == ids[-size:]:
                text = list(ids)
                while len(text) < len(ids) + max_drafts:
                    text.append(text[start + size + len(text) - len(ids)])
                return text[len(ids) :]
    return []
