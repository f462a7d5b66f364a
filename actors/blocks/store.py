"""Memory below the device: which slot holds the block of which name, least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from pageant.actors.blocks.followers import Told
from pageant.protocol.following import StoredBlock
from pageant.protocol.tiers import TierStatistics


def _pass(*_: object) -> None:
    pass


class Store:
    """Slots `first` to `first + num_slots - 1`, each free or holding a named block. Every operation is O(1).

    A slot that is pinned keeps what it holds; `unpin` lets go of all.

    Args:
        lower: what keeps what is given up here, if it is there in time.
    """

    def __init__(self, name: str, num_slots: int, first: int = 0, lower: Store | None = None) -> None:
        self.name, self.num_slots, self.lower = name, num_slots, lower
        self._first = first
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        self._pinned: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(first, first + num_slots))[::-1]
        self._unkept: OrderedDict[bytes, None] = OrderedDict()  # what is not in the store below, oldest first
        self.saved = self.restored = self.lost = self.tokens_hit = 0
        self.told: Told | None = None  # of every name that comes or goes
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
        """The slot that holds a block, which it keeps until `unpin`; None if there is none."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return self._pinned.get(name)
        self._pinned[name] = slot
        return slot

    def unpin(self) -> None:
        """Whatever was pinned has just been used."""
        if self._pinned:
            self._slots.update(self._pinned)
            for name in self._pinned:
                if name in self._unkept:
                    self._unkept.move_to_end(name)
            self._pinned.clear()

    def put(self, name: bytes) -> int | None:
        """A slot that holds that name from now on, perhaps in place of what was used longest ago; None if
        everything is pinned."""
        assert name not in self, "a name is put twice"
        if self._free:
            slot = self._free.pop()
        elif self._slots:
            slot = self._give_up(next(iter(self._slots)))
        else:
            return None
        self._slots[name] = slot
        if self.lower is not None and name not in self.lower:
            self._unkept[name] = None
        self.saved += 1
        if self.told is not None:
            self.told((self.name, name), StoredBlock(tier=self.name, name=name))
        return slot

    def _give_up(self, name: bytes) -> int:
        slot = self._slots.pop(name)
        self.lost += self.lower is None or name in self._unkept
        self._unkept.pop(name, None)
        self._removed(name)
        return slot

    def _removed(self, name: bytes) -> None:
        self.on_lost(name)
        if self.told is not None:
            self.told((self.name, name), None)

    def _lost_below(self, name: bytes) -> None:
        if name in self:
            self._unkept[name] = None

    def forget(self, name: bytes) -> None:
        """A slot does not hold what was said, after all."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free.append(slot)
            self._unkept.pop(name, None)
            self.saved -= 1
            self._removed(name)

    def clear(self) -> int:
        """Every slot is free. Returns how many held a block. Nothing may be pinned."""
        assert not self._pinned, "an exchange has not ended"
        names = list(self._slots)
        self._free += self._slots.values()
        self._slots.clear()
        self._unkept.clear()
        for name in names:
            self._removed(name)
        return len(names)

    @property
    def num_spare(self) -> int:
        """Slots that can be had without losing anything."""
        return self.num_slots - len(self._unkept)

    def spill(self) -> tuple[bytes, int, int] | None:
        """The name of what would be lost first, its slot, and one of the store below that holds it from now on;
        None if there is nothing to spill, or no room."""
        assert self.lower is not None, "there is nothing below to spill to"
        if not self._unkept:
            return None
        name = next(iter(self._unkept))
        slot = self._slots.get(name)
        if slot is None:
            slot = self._pinned[name]
        to = self.lower.put(name)
        if to is None:
            return None
        del self._unkept[name]
        return name, slot, to

    def statistics(self) -> TierStatistics:
        """How it stands."""
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
        """Asserts what must always hold. O(slots)."""
        slots = [*self._slots.values(), *self._pinned.values(), *self._free]
        right = list(range(self._first, self._first + self.num_slots))
        assert sorted(slots) == right, f"a slot of the {self.name} is lost, or had twice"
        unkept = set() if self.lower is None else {name for name in self if name not in self.lower}
        assert set(self._unkept) == unkept, f"the {self.name} is wrong about what is kept below it"
