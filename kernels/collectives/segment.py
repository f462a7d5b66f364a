"""Memory that the ranks of a group on one host share, without a name that could be left behind.

The segment is an anonymous file in memory. Its creator has it open until all ranks have joined, and they find it
there by the creator's process and file number. The system frees it with the last process that has it mapped, however
that process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from dataclasses import dataclass

from pageant.kernels.collectives.base import GroupMisuse
from pageant.kernels.cpu.build import BuildError
from pageant.kernels.cpu.library import GroupFunctions, load_library

__all__ = ["RANKS_MAX", "Segment", "SegmentAddress", "group_functions"]

RANKS_MAX = 64
SLOT_BYTES = 1 << 20
EDGE_BYTES = 16 << 20
_SLOT_BYTES_MIN = 64 << 10


def group_functions() -> GroupFunctions:
    """Return the library's functions of groups.

    Raises GroupMisuse where there are none, or where nothing can be compiled.
    """
    try:
        functions = load_library().group
    except BuildError as error:
        raise GroupMisuse(f"shared memory without its library: {error}") from error
    if functions is None or not hasattr(os, "memfd_create"):
        raise GroupMisuse("shared memory of ranks on this system; expected Linux. Use Gloo instead")
    return functions


@dataclass(frozen=True)
class SegmentAddress:
    """Address by which other processes of the host find a segment; `str` and `parse` are inverse."""

    process: int
    file: int
    nonce: int
    size: int

    def __str__(self) -> str:
        return f"memfd:{self.process}:{self.file}:{self.nonce:016x}:{self.size}"

    @classmethod
    def parse(cls, text: str) -> SegmentAddress:
        """Return the address that `text` says. Raises GroupMisuse."""
        found = re.fullmatch(r"memfd:(\d+):(\d+):([0-9a-f]{16}):(\d+)", text)
        if found is None:
            raise GroupMisuse(f"the address {text!r}; expected memfd:PROCESS:FILE:NONCE:SIZE")
        process, file, nonce, size = found.groups()
        return cls(int(process), int(file), int(nonce, 16), int(size))


class Segment:
    """A new segment for `size` ranks, which join it by its address. Its creator need not be one of them.

    Args:
        size: ranks, up to RANKS_MAX.
        slot_bytes: that collective operations exchange at a time. A multiple of 4096; every rank has two slots.
        edge_bytes: of the largest message between two ranks that `send` does not wait with. Every ordered pair of
            ranks has two such buffers, whose memory is taken when they are first written to.
    """

    def __init__(self, size: int, *, slot_bytes: int = SLOT_BYTES, edge_bytes: int = EDGE_BYTES) -> None:
        if not 1 <= size <= RANKS_MAX:
            raise GroupMisuse(f"a group of {size}; expected 1 to {RANKS_MAX} ranks")
        for name, value, least in (
            ("slot_bytes", slot_bytes, _SLOT_BYTES_MIN),
            ("edge_bytes", edge_bytes, 4096),
        ):
            if value < least or value % 4096:
                raise GroupMisuse(f"{name} is {value}; expected a multiple of 4096, at least {least}")
        functions = group_functions()
        self._file = os.memfd_create("pageant-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, functions.bytes(size, slot_bytes, edge_bytes))
            # Nobody can cut it short, which would kill those who read it.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            nonce = secrets.randbits(64)
            if error := functions.lay_out(self._file, size, slot_bytes, edge_bytes, nonce):
                raise OSError(error, os.strerror(error))
        except BaseException:
            os.close(self._file)
            raise
        self.address = str(SegmentAddress(os.getpid(), self._file, nonce, size))
        """The address for all ranks, of this and other processes, until `close`."""

    def close(self) -> None:
        """Take the address away, once all have joined (or never will). Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.close(file)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
