"""Room of an arena: chunks of equal size, each divided into slots of one size. A core."""

from __future__ import annotations

from pageant.protocol.arena import aligned

CHUNKS = 16
"""Chunks that an arena is divided into: as many sizes of slots fit beside one another."""


class Slabs:
    """Free and taken slots of an arena, by the size of what they hold. Every operation is O(1) but `reclaim`."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.chunk_bytes = num_bytes // CHUNKS // 4096 * 4096 or num_bytes
        # Chunks without slots, by their first byte, the first last.
        self._chunks = list(range(0, num_bytes - self.chunk_bytes + 1, self.chunk_bytes))[::-1]
        # Free slots by size.
        self._free: dict[int, list[int]] = {}
        # Bytes of free slots.
        self._free_bytes = 0
        # The size of the slots of each chunk that is divided.
        self._sizes: dict[int, int] = {}

    def size_of(self, slot_bytes: int) -> int | None:
        """Return the bytes that a slot takes; None if it is larger than a chunk."""
        size = aligned(slot_bytes)
        return size if 0 < size <= self.chunk_bytes else None

    def allocate(self, size: int) -> int | None:
        """Allocate a slot of a size of `size_of`; None if none is free and no chunk is left."""
        free = self._free.setdefault(size, [])
        if not free:
            if not self._chunks:
                return None
            chunk = self._chunks.pop()
            self._sizes[chunk] = size
            free += range(chunk, chunk + self.chunk_bytes - size + 1, size)
            free.reverse()
            self._free_bytes += len(free) * size
        self._free_bytes -= size
        return free.pop()

    def free(self, slot: int, size: int) -> None:
        """Free a slot."""
        self._free[size].append(slot)
        self._free_bytes += size

    def chunk_of(self, slot: int) -> int:
        """Return the first byte of the chunk that a slot lies in."""
        return slot // self.chunk_bytes * self.chunk_bytes

    def reclaim(self, chunk: int) -> None:
        """Take back a chunk whose slots are all free, for slots of any size. O(free slots of its size)."""
        size = self._sizes.pop(chunk)
        left = [slot for slot in self._free[size] if self.chunk_of(slot) != chunk]
        self._free_bytes -= (len(self._free[size]) - len(left)) * size
        self._free[size] = left
        self._chunks.append(chunk)

    @property
    def num_bytes_free(self) -> int:
        """Return the bytes of free slots, and of chunks that are not divided."""
        return self._free_bytes + len(self._chunks) * self.chunk_bytes

    @property
    def end(self) -> int:
        """Return the end of the memory that has been divided so far, in bytes."""
        return max((chunk + self.chunk_bytes for chunk in self._sizes), default=0)
