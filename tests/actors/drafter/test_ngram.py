"""Prompt lookup finds the place with the longest common past, for many sequences at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.actors.drafter.ngram import _CANDIDATES, _PAST_MAX, NgramDrafter
from pageant.protocol.arrays import int32, int64

NOTHING = int32()


def propose(drafter, new, wanted):
    """One round: new tokens and numbers of drafts by serial."""
    serials = list(new)
    counts, drafts = drafter.propose(
        int64(serials),
        int32([len(new[serial]) for serial in serials]),
        int32([token for serial in serials for token in new[serial]]),
        int32([wanted] * len(serials)),
    )
    parts = np.split(drafts, np.cumsum(counts)[:-1])
    return {serial: part.tolist() for serial, part in zip(serials, parts, strict=True)}


def expected(tokens, wanted):
    """Return the drafts by the words of the module: a scan."""
    ends = [i for i in range(len(tokens) - 2, 0, -1) if tokens[i - 1 : i + 1] == tokens[-2:]][:_CANDIDATES]

    def equal(end):
        count = 0
        while count < min(_PAST_MAX, end + 1) and tokens[end - count] == tokens[-1 - count]:
            count += 1
        return count

    if not ends:
        return []
    best = max(ends, key=lambda end: (equal(end), end))
    period = len(tokens) - 1 - best
    return [tokens[best + 1 + ahead % period] for ahead in range(wanted)]


@settings(max_examples=120)
@given(st.data())
def test_it_proposes_what_a_scan_finds(data):
    drafter = NgramDrafter()
    texts = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=60), min_size=1, max_size=5))
    known = {}
    for serial, text in enumerate(texts):
        start = data.draw(st.integers(0, len(text)))
        known[serial] = text[:start]
        drafter.open(serial, int32(text[:start]))
    rounds = data.draw(st.integers(1, 6))
    for _ in range(rounds):
        new = {}
        for serial, text in enumerate(texts):
            count = data.draw(st.integers(0, 4))
            new[serial] = text[len(known[serial]) : len(known[serial]) + count]
            known[serial] = known[serial] + new[serial]
        found = propose(drafter, new, 3)
        # A bucket may hold other pairs, which use up candidates: with few tokens that is rare, and then there is
        # less to find, not something wrong.
        for serial, drafts in found.items():
            assert drafts in ([], expected(known[serial], 3)) or _follows(known[serial], drafts)


def _follows(tokens, drafts):
    """Tell whether the drafts followed these last two tokens somewhere."""
    ends = [i for i in range(1, len(tokens) - 1) if tokens[i - 1 : i + 1] == tokens[-2:]]
    return any(
        drafts == [tokens[end + 1 + ahead % (len(tokens) - 1 - end)] for ahead in range(len(drafts))]
        for end in ends
    )


def test_the_longest_common_past_wins_over_the_newest_place():
    drafter = NgramDrafter()
    drafter.open(1, int32([9, 1, 2, 3, 50, 7, 2, 3, 60, 9, 1, 2, 3]))
    assert propose(drafter, {1: []}, 2) == {1: [50, 7]}


def test_a_repetition_goes_on_beyond_the_end():
    drafter = NgramDrafter()
    drafter.open(1, int32([5, 6, 5, 6, 5, 6]))
    assert propose(drafter, {1: []}, 5) == {1: [5, 6, 5, 6, 5]}


def test_nothing_is_proposed_without_a_place_that_is_alike():
    drafter = NgramDrafter()
    drafter.open(1, int32([1]))
    drafter.open(2, int32([]))
    drafter.open(3, int32([1, 2, 3, 4]))
    assert propose(drafter, {1: [], 2: [], 3: []}, 4) == {1: [], 2: [], 3: []}


def test_a_sequence_grows_out_of_its_room_and_leaves_it_to_others():
    drafter = NgramDrafter()
    text = [*list(range(1000, 1300)), 1000]
    drafter.open(1, int32(text[:200]))
    for token in text[200:]:
        propose(drafter, {1: [token]}, 1)
    assert propose(drafter, {1: [1001]}, 3) == {1: [1002, 1003, 1004]}
    size = drafter.num_bytes
    drafter.open(2, int32(text[:200]))  # in the capacity that the first has left
    assert drafter.num_bytes == size
    drafter.close(1)
    drafter.open(3, int32([7, 8, 9, 7, 8]))
    assert propose(drafter, {2: [], 3: []}, 1) == {2: [], 3: [9]}


@pytest.mark.parametrize("tokens", [8000, 8192, 20_000])
def test_an_index_takes_at_most_64_bytes_a_token(tokens):
    drafter = NgramDrafter()
    drafter.open(1, int32(np.arange(tokens)))
    assert drafter.num_bytes <= 64 * tokens
