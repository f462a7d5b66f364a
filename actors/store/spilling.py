"""The store's part that keeps blocks on a disk: those that would be lost first are written to a file, and come back.

A block is written while it is still in memory, without being held: if its slot was given to another meanwhile, what was
written is dropped. It comes back as a block of another host does: into a slot of its own, and only if it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pageant.actors.runtime.disk_file import DiskFile
from pageant.actors.runtime.sizes import parse_bytes
from pageant.actors.store.adopting import Copied, adopt
from pageant.actors.store.fetching import BATCH_BYTES, Fetching
from pageant.actors.store.index import NOWHERE, Place, Slot, StoreIndex
from pageant.protocol.arena import SlotState
from pageant.protocol.storing import StoredLayout

log = logging.getLogger("pageant.store")

DISK_MIN, DISK_MAX = 1 << 20, 1 << 50
SPARE_SHARE = 0.25
"""Share of the memory that can be given to others without losing a block, if the disk keeps up."""
SPARE_MAX = 256
"""The most blocks that are kept on the disk beside the memory for that."""


class Load(NamedTuple):
    """A block on its way from the disk to the memory."""

    name: bytes
    place: Place
    """The slot of the memory that is reserved for it."""
    below: Place
    """Its pinned place on the disk."""
    generation: int
    """The generation in which it was written. The disk thread must not look it up: blocks can be forgotten."""


def check_disk(disk: str | int, path: str | None) -> int:
    """Return the bytes of the disk that a store may take.

    Raises:
        ValueError: that is no size, or there is no folder for it.
    """
    try:
        wanted = parse_bytes(disk)
    except ValueError as error:
        raise ValueError(f"disk: {error}") from None
    if wanted and not DISK_MIN <= wanted <= DISK_MAX:
        raise ValueError(f"disk is {disk!r}; expected 0, or a size such as 100GiB, of 1 MiB to 1 PiB")
    if wanted and path is None:
        raise ValueError(
            f"disk is {disk!r}, and there is no disk_path; expected a folder on the store's host"
        )
    return wanted


class Spilling(Fetching):
    """Base of the store: its file, if it has one."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._file: DiskFile | None = None
        self._disk: StoreIndex
        """Places in the file, as slots of memory; there is room for none without a file. Set by `_open_disk`."""
        self._generations: dict[bytes, int] = {}
        """Generations in which blocks were written, by name: exactly of those that have a place in `_disk`. Only the
        loop reads and writes them."""
        self._is_spilling = False
        self._is_broken = False
        """The disk takes nothing any more."""
        self._spilled = self._loaded = self._unloaded = 0

    def _open_disk(self) -> None:
        self._file, num_bytes = self._take_disk()
        self._disk = StoreIndex(max(num_bytes, 1), _pass, self._note_disk)

    def _take_disk(self) -> tuple[DiskFile | None, int]:
        """Return the file, if there is to be one, and the bytes that it may take.

        Raises:
            ConfigurationError: there is no such folder.
        """
        wanted = check_disk(self.options.disk, self.options.disk_path)
        if not wanted:
            return None, 0
        file = DiskFile(str(self.options.disk_path), "store")
        if wanted > file.bytes_free:
            log.warning("disk is %s: it is taken down to %d MiB", self.options.disk, file.bytes_free >> 20)
        return file, min(wanted, file.bytes_free)

    def _note_disk(self, name: bytes, kind: bytes, came: bool) -> None:
        """Tell followers of a block that came to the disk, or is there no more."""
        raise NotImplementedError

    def _is_near(self, name: bytes) -> bool:
        return name in self._index or name in self._disk

    # To the disk.

    def _spill_ahead(self) -> None:
        """Have blocks written that would be lost soon, beside the loop."""
        if self._file is not None and not self._is_spilling and not self._is_broken:
            due = list(self._due())
            if due:
                self._is_spilling = True
                self.spawn(self._spill(due))

    def _due(self) -> Iterator[Slot]:
        """Yield slots that would be lost first, until enough others are spare: free, or on the disk too."""
        spare, batch = self._index.slabs.num_bytes_free, 0
        wanted = SPARE_SHARE * self._arena.num_bytes
        if spare >= wanted:
            return
        for slot in islice(self._index.eldest(), SPARE_MAX):
            if spare >= wanted or batch >= BATCH_BYTES:
                return
            spare += slot.size
            if slot.name not in self._disk and self._disk.slabs.size_of(slot.size) is not None:
                batch += slot.size
                yield slot

    async def _spill(self, due: Sequence[Slot]) -> None:
        places = [self._disk.reserve(slot.name, slot.kind, slot.size, self._self) for slot in due]
        pairs = [(slot, place) for slot, place in zip(due, places, strict=True) if place != NOWHERE]
        # Known from the reservation on: whatever drops a place forgets its generation, in `_note_disk`.
        self._generations.update((slot.name, slot.place.generation) for slot, _ in pairs)
        ok = [False] * len(pairs)
        try:
            ok = await self.offload_beside("disk", self._write, pairs)
        finally:
            for (_, place), is_written in zip(pairs, ok, strict=True):
                self._disk.settle(place, self._self, ok=is_written)
                self._spilled += is_written
            self._is_spilling = False
        if any(ok):
            self._spill_ahead()

    def _write(self, pairs: Sequence[tuple[Slot, Place]]) -> list[bool]:
        """Write blocks. Return which of them were still there when they had been written. Runs in a thread."""
        assert self._file is not None, "there is a disk"
        written: list[bool] = []
        for slot, place in pairs:
            start, generation = slot.place
            try:
                self._file.write(place.slot, self._arena.bytes[start : start + slot.size])
            except OSError as error:
                self._is_broken = True
                log.warning("no more blocks are written to %s: %s", self.options.disk_path, error)
                break
            written.append(self._arena.holds(start, slot.name, generation, SlotState.READY))
        return written + [False] * (len(pairs) - len(written))

    # And back.

    def _begin_loads(self, names: Sequence[bytes]) -> list[bytes]:
        """Read those of these blocks that only the disk has. Return their names."""
        wanted: dict[bytes, list[Load]] = {}
        for name in names:
            kind = None if name in self._index else self._disk.kind_of(name)
            if kind is None or kind not in self._layouts:
                continue
            place = self._index.reserve(name, kind, self._layouts[kind].slot_bytes, self._self)
            if place == NOWHERE:
                break
            below = self._disk.pin(name, self._self)
            assert below != NOWHERE, "what is being written is still in memory"
            wanted.setdefault(kind, []).append(Load(name, place, below, self._generations[name]))
        for kind, some in wanted.items():
            self.spawn(self._load(self._layouts[kind], some))
        return [load.name for some in wanted.values() for load in some]

    async def _load(self, layout: StoredLayout, wanted: Sequence[Load]) -> None:
        size = max(1, BATCH_BYTES // layout.slot_bytes)
        left = list(wanted)
        try:
            while left:
                batch, left = left[:size], left[size:]
                ok = [False] * len(batch)
                try:
                    ok = await self.offload_beside("disk", self._read, layout, batch)
                finally:
                    self._end_loads(layout, batch, ok)
        finally:
            self._end_loads(layout, left, [False] * len(left))

    def _end_loads(self, layout: StoredLayout, batch: Sequence[Load], ok: Sequence[bool]) -> None:
        came = 0
        for load, is_whole in zip(batch, ok, strict=True):
            self._disk.settle(load.below, self._self, ok=is_whole)
            came += self._end_filling(layout.kind, (load.name, load.place), ok=is_whole)
        self._loaded += came
        self._unloaded += len(batch) - came
        self._wake_pinners()

    def _read(self, layout: StoredLayout, batch: Sequence[Load]) -> list[bool]:
        """Read blocks, and check them. Return which are whole. Runs in a thread."""
        assert self._file is not None, "there is a disk"
        found: list[bool] = []
        for name, place, below, generation in batch:
            into = self._arena.bytes[place.slot : place.slot + layout.slot_bytes]
            try:
                self._file.read(below.slot, into)
            except OSError as error:
                log.warning("a block is not read from %s: %s", self.options.disk_path, error)
                found.append(False)
                continue
            found.append(adopt(self._arena, layout, Copied(name, generation, place)))
        return found


def _pass(*_: object) -> None:
    pass
