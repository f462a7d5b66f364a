"""Memory that a store and executors of its host share: slots of named blocks, each with a header.

A slot is a header, the checksums of its parts, and the parts: what each layer's keys, and then its values, have of
each head. The store writes headers. Executors write checksums and parts, each rank its own. All numbers are
little-endian.

A checksum is the sum of a part's 64-bit words, and depends on the slot's generation: what a late writer leaves in a
slot that another has by now never fits the slot's header.
"""

from __future__ import annotations

import mmap
import os
import re
import weakref
from contextlib import ExitStack
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pageant.protocol.block_names import NAME_BYTES
from pageant.protocol.errors import ConfigurationError

ALIGNMENT = 64
HEADER = np.dtype([("name", "V16"), ("generation", "<u8"), ("state", "<u8"), ("spare", "V32")])
CHECKSUM_BYTES = 8
# Odd, so that different generations give different sums.
GENERATION_FACTOR = 0x9E3779B97F4A7C15
_MASK = 0xFFFF_FFFF_FFFF_FFFF

UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
_PATH = re.compile(r"/proc/\d{1,10}/fd/\d{1,10}", re.ASCII)


class SlotState(IntEnum):
    """State of a slot."""

    EMPTY = 0
    WRITING = 1
    READY = 2


def aligned(num_bytes: int) -> int:
    """Return a number of bytes, rounded up to whole cache lines."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """A mapping of the memory.

    Attributes:
        bytes: uint8 [num_bytes].
        words: uint64 [num_bytes / 8], the same memory.
    """

    def __init__(self, file: int, num_bytes: int, path: str) -> None:
        self._map = mmap.mmap(file, num_bytes)
        self.path, self.num_bytes = path, num_bytes
        self.bytes: UInt8 = np.frombuffer(self._map, np.uint8)
        self.words: UInt64 = self.bytes.view(np.uint64)

    @classmethod
    def create(cls, num_bytes: int) -> Arena:
        """Return fresh memory without a name, which is gone with the processes that map it.

        Raises:
            ConfigurationError: the system has none.
        """
        with ExitStack() as undo:
            try:
                file = os.memfd_create("pageant-store", os.MFD_CLOEXEC)
                undo.callback(os.close, file)
                os.ftruncate(file, num_bytes)
                arena = cls(file, num_bytes, f"/proc/{os.getpid()}/fd/{file}")
            except (OSError, AttributeError, ValueError) as error:
                raise ConfigurationError(
                    f"memory is {num_bytes} bytes, which cannot be shared: {error}"
                ) from error
            weakref.finalize(arena, undo.pop_all().close)
        return arena

    @classmethod
    def open(cls, path: str, num_bytes: int) -> Arena:
        """Return the memory of a store of this host, by its path.

        Raises:
            OSError: it is gone, or smaller than `num_bytes`.
        """
        if not _PATH.fullmatch(path):
            raise OSError(f"{path!r:.80} is no path of a store's memory")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < num_bytes:
                raise OSError(f"{path} has {os.fstat(file).st_size} bytes; expected {num_bytes}")
            return cls(file, num_bytes, path)
        finally:
            os.close(file)

    @property
    def address(self) -> int:
        """Return the address of the memory, which lives as long as `bytes`."""
        return int(self.bytes.ctypes.data)

    def populate(self, start: int, end: int) -> None:
        """Have the system provide pages now: their faults would make the first copies slow. May take seconds."""
        try:
            self._map.madvise(_POPULATE_WRITE, start, end - start)
        except (OSError, ValueError):  # an older kernel; whoever writes first waits
            return

    def header(self, slot: int) -> npt.NDArray[np.void]:
        """Return a view of the header of the slot that begins at byte `slot`."""
        return self.bytes[slot : slot + HEADER.itemsize].view(HEADER)

    def write_header(self, slot: int, name: bytes, generation: int, state: SlotState) -> None:
        """Write a slot's header. The state is written last, and emptied first."""
        header = self.header(slot)
        header["state"] = SlotState.EMPTY
        header["name"], header["generation"] = np.void(name), generation
        header["state"] = state

    def holds(self, slot: int, name: bytes, generation: int, state: SlotState) -> bool:
        """Tell whether a slot's header says exactly this."""
        header = self.header(slot)
        return bool(
            header["generation"][0] == generation
            and header["state"][0] == state
            and header["name"][0].tobytes() == name
        )


_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


def checksums(words: npt.NDArray[Any], generation: int) -> UInt64:
    """Return the checksum of each of N parts, uint64 [N]. words: uint64 [N, W], or uint8 [N, W]."""
    sums = np.einsum("ij->i", words) if words.dtype == np.uint64 else words.sum(axis=1, dtype=np.uint64)
    return with_generation(sums, generation)


def with_generation(sums: UInt64, generation: int) -> UInt64:
    """Return the checksums of parts in a slot of that generation, uint64 [N], by the sums of their words."""
    with np.errstate(over="ignore"):
        return np.asarray(sums + np.uint64(_mixed(generation)), np.uint64)


def sum_of_sums(sums: UInt64) -> int:
    """Return the sum of checksums, uint64 [N], in 64 bits."""
    return int(np.add.reduce(sums))


def sum_of_parts(words: npt.NDArray[Any], num_parts: int, generation: int) -> int:
    """Return what the checksums of parts add up to, in 64 bits. words: uint64 [W], or uint8 [W], of all parts."""
    total = int(np.add.reduce(words, dtype=np.uint64)) + num_parts * _mixed(generation)
    return total & _MASK


def rebase(sums: UInt64, before: int, after: int) -> None:
    """Turn checksums of one generation, uint64 [N], into those of another."""
    with np.errstate(over="ignore"):
        sums += np.uint64((_mixed(after) - _mixed(before)) & _MASK)


def _mixed(generation: int) -> int:
    return generation * GENERATION_FACTOR & _MASK


def joined(names: list[bytes]) -> UInt8:
    """Return names of NAME_BYTES each as one array, uint8 [16 * N]."""
    return np.frombuffer(b"".join(names), np.uint8)


def split(names: UInt8) -> list[bytes]:
    """Return the names of an array, uint8 [16 * N]."""
    data = names.tobytes()
    return [data[start : start + NAME_BYTES] for start in range(0, len(data), NAME_BYTES)]
