"""A tier below the device: slots of named blocks, least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from pageant.actors.blocks.followers import Listener
from pageant.protocol.following import StoredBlock
from pageant.protocol.tiers import TierStatistics


def _pass(*_: object) -> None:
    pass


class Store:
    """Slots `first` to `first + num_slots - 1`, each free or holding a named block. Every operation is O(1).

    A pinned slot keeps its block; `unpin` releases all of them.

    Args:
        lower: the tier that blocks are spilled to before they are evicted here, if there is time.
    """

    def __init__(self, name: str, num_slots: int, first: int = 0, lower: Store | None = None) -> None:
        self.name, self.num_slots, self.lower = name, num_slots, lower
        self._first = first
        # Slots of blocks that may be evicted, by name, least recently used first.
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        # Slots of pinned blocks, by name.
        self._pinned: OrderedDict[bytes, int] = OrderedDict()
        # Free slots. With the two dicts, each slot exactly once.
        self._free = list(range(first, first + num_slots))[::-1]
        # Names that the lower tier does not hold, oldest first.
        self._not_below: OrderedDict[bytes, None] = OrderedDict()
        self.saved = self.restored = self.lost = self.tokens_hit = 0
        # Called with every name that comes or goes; None if there are no followers.
        self.listener: Listener | None = None
        self.on_lost: Callable[[bytes], object] = _pass
        if lower is not None:
            lower.on_lost = self._lost_below

    def __len__(self) -> int:
        return len(self._slots) + len(self._pinned)

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots or name in self._pinned

    def __iter__(self) -> Iterator[bytes]:
        yield from self._slots
        yield from self._pinned

    def pin(self, name: bytes) -> int | None:
        """Return the slot that holds a block, which keeps it until `unpin`; None if there is none."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return self._pinned.get(name)
        self._pinned[name] = slot
        return slot

    def unpin(self) -> None:
        """Release all pinned blocks, as the most recently used ones."""
        if self._pinned:
            self._slots.update(self._pinned)
            for name in self._pinned:
                if name in self._not_below:
                    self._not_below.move_to_end(name)
            self._pinned.clear()

    def put(self, name: bytes) -> int | None:
        """Return a slot that holds that name from now on, perhaps evicting the least recently used block.

        None if everything is pinned.
        """
        assert name not in self, "a name is put twice"
        if self._free:
            slot = self._free.pop()
        elif self._slots:
            slot = self._give_up(next(iter(self._slots)))
        else:
            return None
        self._slots[name] = slot
        if self.lower is not None and name not in self.lower:
            self._not_below[name] = None
        self.saved += 1
        if self.listener is not None:
            self.listener((self.name, name), StoredBlock(tier=self.name, name=name))
        return slot

    def _give_up(self, name: bytes) -> int:
        slot = self._slots.pop(name)
        self.lost += self.lower is None or name in self._not_below
        self._not_below.pop(name, None)
        self._removed(name)
        return slot

    def _removed(self, name: bytes) -> None:
        self.on_lost(name)
        if self.listener is not None:
            self.listener((self.name, name), None)

    def _lost_below(self, name: bytes) -> None:
        if name in self:
            self._not_below[name] = None

    def forget(self, name: bytes) -> None:
        """Free a slot that does not hold its name after all."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free.append(slot)
            self._not_below.pop(name, None)
            self.saved -= 1
            self._removed(name)

    def clear(self) -> int:
        """Free every slot. Return how many held a block. Nothing may be pinned."""
        assert not self._pinned, "an exchange has not ended"
        names = list(self._slots)
        self._free += self._slots.values()
        self._slots.clear()
        self._not_below.clear()
        for name in names:
            self._removed(name)
        return len(names)

    @property
    def num_spare(self) -> int:
        """Return the number of slots that can be reused without losing a block."""
        return self.num_slots - len(self._not_below)

    def spill(self) -> tuple[bytes, int, int] | None:
        """Copy the block that would be lost first to the lower tier. Return its name, its slot and the lower
        slot.

        None if there is nothing to spill, or no room.
        """
        assert self.lower is not None, "there is nothing below to spill to"
        if not self._not_below:
            return None
        name = next(iter(self._not_below))
        slot = self._slots.get(name)
        if slot is None:
            slot = self._pinned[name]
        to = self.lower.put(name)
        if to is None:
            return None
        del self._not_below[name]
        return name, slot, to

    def statistics(self) -> TierStatistics:
        """Return the state of the tier."""
        return TierStatistics(
            name=self.name,
            num_blocks=self.num_slots,
            blocks_used=len(self),
            blocks_saved=self.saved,
            blocks_restored=self.restored,
            blocks_lost=self.lost,
            tokens_hit=self.tokens_hit,
        )

    def check_integrity(self) -> None:
        """Assert the invariants. O(slots)."""
        slots = [*self._slots.values(), *self._pinned.values(), *self._free]
        right = list(range(self._first, self._first + self.num_slots))
        assert sorted(slots) == right, f"a slot of the {self.name} is lost, or had twice"
        unkept = set() if self.lower is None else {name for name in self if name not in self.lower}
        assert set(self._not_below) == unkept, f"the {self.name} is wrong about what is kept below it"
