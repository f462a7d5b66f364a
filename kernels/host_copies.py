"""Copies in the host's memory that sum up what they copy: blocks go to a store and come back with checksums.

numpy's here; `kernels/cpu/csrc/base/copies.cpp` does it in one pass, past the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CopyParts", "PartCopies", "copy_parts"]

WORD_BYTES = 8


class PartCopies(NamedTuple):
    """Runs of parts, one a row, whose sums follow one another. Memory of both sides must stay as it is meanwhile.

    Attributes:
        sources, destinations: int64 [N], addresses of the first part. They do not overlap.
        counts: int64 [N], parts of each run.
        part_bytes: int64 [N], bytes of each of a run's parts.
        in_words: int64 [N], 1 where little-endian words of 64 bits are summed up, of which parts are whole numbers,
            and 0 where bytes are.
    """

    sources: npt.NDArray[np.int64]
    destinations: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    part_bytes: npt.NDArray[np.int64]
    in_words: npt.NDArray[np.int64]


CopyParts = Callable[[PartCopies, npt.NDArray[np.uint64]], None]
"""Copies parts, and writes the sum of each, modulo 2**64, to uint64 [parts of all runs]."""


def copy_parts(copies: PartCopies, sums: npt.NDArray[np.uint64]) -> None:
    """Copy parts; see `CopyParts`. sums: uint64 [parts], of what was copied, whoever writes there meanwhile."""
    first = 0
    for source, destination, count, part_bytes, in_words in zip(
        *(one.tolist() for one in copies), strict=True
    ):
        copied = _bytes_at(destination, count * part_bytes)
        copied[:] = _bytes_at(source, count * part_bytes)
        numbers = copied.view(np.uint64) if in_words else copied
        sums[first : first + count] = numbers.reshape(count, -1).sum(axis=1, dtype=np.uint64)
        first += count


def _bytes_at(address: int, count: int) -> npt.NDArray[np.uint8]:
    memory = (ctypes.c_uint8 * count).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8)
