"""Copies that sum up what they copy: numpy's and the compiled ones, against sums of Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.copying import copier
from pageant.kernels.cpu.library import load_library
from pageant.kernels.host_copies import CopyParts, PartCopies, copy_parts

ROOM = 1 << 13


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def copy(request) -> CopyParts:
    if request.param == "numpy":
        return copy_parts
    try:
        return copier(load_library())
    except BuildError as error:
        pytest.skip(str(error))


def by_hand(part: bytes, in_words: bool) -> int:
    step = 8 if in_words else 1
    return sum(int.from_bytes(part[at : at + step], "little") for at in range(0, len(part), step)) % 2**64


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(
        st.tuples(
            st.integers(1, 3),  # parts
            st.integers(1, 90),  # words, or bytes, of each
            st.booleans(),
            st.integers(0, 70),  # bytes from whole lines, of the source and of the destination
            st.integers(0, 70),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_parts_of_any_size_and_place_are_copied_and_summed_up_and_nothing_else_is_touched(copy, runs, seed):
    chance = np.random.default_rng(seed)
    sources = [chance.integers(0, 256, ROOM, np.uint8) for _ in runs]
    destinations = [np.full(ROOM, 0xA5, np.uint8) for _ in runs]
    table, wanted, sums = [], [], []
    for (parts, size, in_words, source_at, destination_at), source, destination in zip(
        runs, sources, destinations, strict=True
    ):
        size *= 8 if in_words else 1
        first, to = (
            -one.ctypes.data % 64 + at for one, at in ((source, source_at), (destination, destination_at))
        )
        table.append((source.ctypes.data + first, destination.ctypes.data + to, parts, size, in_words))
        copied = source[first : first + parts * size]
        expected = destination.copy()
        expected[to : to + parts * size] = copied
        wanted.append(expected)
        sums += [by_hand(part.tobytes(), in_words) for part in copied.reshape(parts, size)]
    found = np.zeros(len(sums), np.uint64)
    copy(PartCopies(*(np.array(column, np.int64) for column in zip(*table, strict=True))), found)
    assert found.tolist() == sums
    for destination, expected in zip(destinations, wanted, strict=True):
        np.testing.assert_array_equal(destination, expected)


def test_large_parts_are_copied_whole(copy):
    """Longer than what is prefetched, with an end that is no whole line."""
    source = np.random.default_rng(0).integers(0, 2**63, 100_003, np.int64).view(np.uint64)
    destination, found = np.zeros_like(source), np.zeros(1, np.uint64)
    columns = (source.ctypes.data, destination.ctypes.data, 1, source.nbytes, 1)
    copy(PartCopies(*(np.array([one], np.int64) for one in columns)), found)
    np.testing.assert_array_equal(destination, source)
    assert int(found[0]) == sum(source.tolist()) % 2**64
