"""Disk of simulated stores, which is gone with the store's process, and fails now and then."""

from __future__ import annotations

import errno
from random import Random

import numpy as np

from pageant.actors.runtime.disk_file import DiskFile, UInt8

FULL_SHARE = 0.05
"""Of a faulty disk's failures, those after which it takes nothing any more."""


class SimulatedDisk(DiskFile):
    """Stand-in for a file: bytes in memory.

    Args:
        random: draws what goes wrong.
        faulty_share: of reads and writes, those that go wrong: they raise, or a bit of what was read is another.
    """

    def __init__(self, num_bytes: int, random: Random, faulty_share: float) -> None:
        self.bytes_free = num_bytes
        self._bytes = np.zeros(num_bytes, np.uint8)
        self._random, self._faulty_share = random, faulty_share

    def write(self, at: int, data: UInt8) -> None:
        """See `DiskFile`."""
        if self._random.random() < self._faulty_share * FULL_SHARE:
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        self._bytes[at : at + len(data)] = data

    def read(self, at: int, into: UInt8) -> None:
        """See `DiskFile`."""
        is_faulty = self._random.random() < self._faulty_share
        if is_faulty and self._random.random() < 0.5:
            raise OSError(errno.EIO, "the simulated disk cannot read")
        into[:] = self._bytes[at : at + len(into)]
        if is_faulty:
            into[self._random.randrange(len(into))] ^= 1 << self._random.randrange(8)
