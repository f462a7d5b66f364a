"""The host's memory below the device: which slot holds the block of which name, least recently used first."""

from __future__ import annotations

from collections import OrderedDict


class HostTier:
    """Slots 0 to num_slots - 1, each free or holding a named block. Every operation is O(1).

    A slot that is pinned keeps what it holds; `unpin` lets go of all.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._pinned: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_slots))[::-1]
        self.lost = 0  # names given up to make room

    def __len__(self) -> int:
        return len(self._slots) + len(self._pinned)

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots or name in self._pinned

    def pin(self, name: bytes) -> int | None:
        """The slot that holds a block, which it keeps until `unpin`; None if there is none."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return self._pinned.get(name)
        self._pinned[name] = slot
        return slot

    def unpin(self) -> None:
        """Whatever was pinned has just been used."""
        self._slots.update(self._pinned)
        self._pinned.clear()

    def put(self, name: bytes) -> int | None:
        """A slot that holds that name from now on, perhaps in place of what was used longest ago; None if
        everything is pinned."""
        assert name not in self, "a name is put twice"
        if self._free:
            slot = self._free.pop()
        elif self._slots:
            _, slot = self._slots.popitem(last=False)
            self.lost += 1
        else:
            return None
        self._slots[name] = slot
        return slot

    def forget(self, name: bytes) -> None:
        """A slot does not hold what was said, after all."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Asserts what must always hold. O(slots)."""
        slots = [*self._slots.values(), *self._pinned.values(), *self._free]
        assert sorted(slots) == list(range(self.num_slots)), "a slot of the host is lost, or had twice"
