"""What one exchange moves between the device and the stores below it: the host's memory, and under it the disk.

A cached block that is about to be somebody else's is saved first, urgently: its step waits for that. So that
few are, the blocks next in line to be evicted are saved ahead of time, beside a step that computes: `dirty` ones
are free, cached, and not in the host's memory, and as long as fewer than `RESERVE` blocks can be had without a
save, some of them are saved with each exchange, those that became free first. What has been saved stays there
when it is restored, so that nothing is saved twice. From the host's memory blocks are spilled to the disk in the
same way, but never urgently: what had no time to be is lost. A block that is read from the disk goes to the device,
and to the host's memory when it is free there again.

What is restored is needed by the step that it comes with, which is held up if it takes longer than a step does.
Where others run, what takes longer is therefore restored beside the steps before: some blocks with each, which are
cached from then on as any others, while the sequence that wants them is not yet admitted.

To write everything down as soon as it is computed was turned down: most of it never leaves a device with room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from pageant.actors.blocks.branches import TOKEN_BYTES
from pageant.actors.blocks.costs import Costs, Move
from pageant.actors.blocks.followers import Key, Told
from pageant.actors.blocks.hashing import block_name, is_of_first_group, name_in_group
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.store import Store
from pageant.protocol.arrays import int32
from pageant.protocol.following import StoredBlock
from pageant.protocol.tiers import DISK, BlockMoves, TierStatistics

RESERVE = 256  # blocks, or a quarter of the pool, or all of the host's memory, that can be had without a save
AHEAD = 16  # blocks moved beside a step while nobody knows how many there is time for
AHEAD_MAX = 64


def _way_out(slot: int) -> Move:
    return Move.READ if slot >= DISK else Move.HOST


class Tiers:
    """The stores below one pool, and the moves of the exchange at hand.

    Args:
        block_tokens: that a block spares from being computed: where a stretch of a sequence has several blocks, each
            its part.
        host_slots, disk_slots: how many blocks they hold; the disk may have none.
    """

    def __init__(
        self, pool: BlockPool, costs: Costs, block_tokens: float, host_slots: int, disk_slots: int = 0
    ) -> None:
        self.pool, self.costs = pool, costs
        self.disk = Store("disk", disk_slots, DISK)
        self.host = Store("host", host_slots, lower=self.disk if disk_slots else None)
        self.stores = (self.host, self.disk) if disk_slots else (self.host,)
        self._block_tokens = block_tokens
        self._dirty: OrderedDict[int, bytes] = OrderedDict()  # in the order in which they became free
        self._saves: list[tuple[int, int]] = []  # urgent ones: block, slot
        self._restores: list[tuple[int, int]] = []  # slot, block
        self._warmed: list[tuple[int, int]] = []  # the same, of what is restored beside the step
        self._unsure: list[tuple[int, Store, bytes]] = []  # by steps that may not have been computed
        self._step = 0
        self._seconds_left = 0.0  # of a step's time, for what it needs
        pool.on_evicted = self._evicted

    def begin(self, step: int, computed_step: int) -> None:
        """An exchange begins."""
        self._step = step
        self._seconds_left = self.costs.seconds_per_step or 0.0
        if self._unsure:
            self._unsure = [entry for entry in self._unsure if entry[0] > computed_step]

    # The device gives up blocks.

    def freed(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """A sequence gave up these blocks, named so; its last ones come first."""
        for block, name in blocks:
            if name not in self.host:
                self._dirty[block] = name
                self._dirty.move_to_end(block)

    def _evicted(self, blocks: list[int], names: list[bytes]) -> None:
        """Cached blocks are somebody else's from this step on."""
        pays = self.costs.move_pays(self._block_tokens, Move.HOST, Move.HOST)
        for block, name in zip(blocks, names, strict=True):
            self._dirty.pop(block, None)
            if pays and not any(name in store for store in self.stores):
                self._save(block, name, self._saves)

    def _save(self, block: int, name: bytes, saves: list[tuple[int, int]]) -> None:
        slot = self.host.put(name)
        if slot is not None:
            saves.append((block, slot))
            self._unsure.append((self._step, self.host, name))

    # A sequence is admitted.

    def _pin(self, name: bytes) -> int | None:
        """The slot of a name from where it is worth restoring; it keeps it for this exchange."""
        for store, way in zip(self.stores, (Move.HOST, Move.READ), strict=False):
            if name in store and self.costs.move_pays(self._block_tokens, way):
                return store.pin(name)
        return None

    def __contains__(self, name: bytes) -> bool:
        """Whether a block of that name is worth restoring."""
        return any(
            name in store and self.costs.move_pays(self._block_tokens, way)
            for store, way in zip(self.stores, (Move.HOST, Move.READ), strict=False)
        )

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The slots of the longest prefix of `names` that is worth restoring. They keep it for this exchange."""
        slots: list[int] = []
        for name in names:
            slot = self._pin(name)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def find_partial(
        self, parent: bytes, wanted: bytes, more_than: int, groups: int = 1
    ) -> tuple[list[int], int]:
        """The slots of the partly filled blocks, one of each group, that follow `parent` and hold the first of the
        tokens `wanted`, more of them than `more_than`, and nothing else; and how many. None, where there are none."""
        for count in range(len(wanted) // TOKEN_BYTES, more_than, -1):
            if not self.costs.move_pays((count - more_than) / groups, Move.HOST):
                break
            name = block_name(parent, wanted[: TOKEN_BYTES * count])
            slots = self.find(name_in_group(name, group) for group in range(groups))
            if len(slots) == groups:
                return slots, count
        return [], 0

    def time_for(self, slots: Sequence[int]) -> int:
        """How many of these can be restored before this exchange's step without holding it up."""
        left = self._seconds_left
        for count, slot in enumerate(slots):
            left -= self.costs.seconds_per_move(_way_out(slot)) or 0.0
            if left < 0:
                return count
        return len(slots)

    def restore(self, slots: Sequence[int], blocks: Sequence[int], num_tokens: int) -> None:
        """What these slots hold, so many tokens, goes into these blocks before the step computes."""
        self._restores += zip(slots, blocks, strict=True)
        for slot in slots:
            self._seconds_left -= self.costs.seconds_per_move(_way_out(slot)) or 0.0
        below = sum(slot >= DISK for slot in slots)
        if slots:
            self.disk.tokens_hit += num_tokens * below // len(slots)
            self.host.tokens_hit += num_tokens - num_tokens * below // len(slots)

    def warm(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """What these slots hold goes into these blocks beside the step, for whoever comes later."""
        self._warmed += zip(slots, blocks, strict=True)

    def _store_of(self, slot: int) -> Store:
        return self.disk if slot >= DISK else self.host

    # The exchange ends.

    def end(self, granted: bool) -> BlockMoves | None:
        """The exchange ends. Where nothing is `granted` there is no plan to bring moves along."""
        spills = self._spill() if granted else []
        ahead = self._save_ahead() if granted else []
        for store in self.stores:
            store.unpin()
        urgent, needed, warmed = self._saves, self._restores, self._warmed
        if not (urgent or ahead or needed or warmed or spills):
            return None
        if not granted:
            assert not needed and not warmed, "what is restored is restored for somebody"
            self._forget_saves()
            return None
        self._saves, self._restores, self._warmed = [], [], []
        saves, restores = [*urgent, *ahead], [*needed, *warmed]
        for slot, _ in restores:
            self._store_of(slot).restored += 1
        return BlockMoves(
            save_blocks=int32([block for block, _ in saves]),
            save_slots=int32([slot for _, slot in saves]),
            num_urgent=len(urgent),
            restore_slots=int32([slot for slot, _ in restores]),
            restore_blocks=int32([block for _, block in restores]),
            num_needed=len(needed),
            spill_slots=int32([slot for slot, _ in spills]),
            spill_to=int32([to for _, to in spills]),
        )

    def num_beside(self, way: Move) -> int:
        """How many blocks can be moved so while a step computes."""
        step, move = self.costs.seconds_per_step, self.costs.seconds_per_move(way)
        return AHEAD if step is None or move is None else max(1, int(min(AHEAD_MAX, step / move)))

    def _save_ahead(self) -> list[tuple[int, int]]:
        saves: list[tuple[int, int]] = []
        pool, reserve = self.pool, min(RESERVE, self.pool.num_blocks // 4)
        most = self.num_beside(Move.HOST)
        while self._dirty and len(saves) < most and pool.num_free - len(self._dirty) < reserve:
            block, name = self._dirty.popitem(last=False)
            cached = pool.references(block) == 0 and pool.name_of(block) == name
            if cached and name not in self.host and self.costs.move_pays(self._block_tokens, Move.HOST):
                self._save(block, name, saves)
        return saves

    def _spill(self) -> list[tuple[int, int]]:
        """From the host's memory to the disk, so that there is room to save to."""
        spills: list[tuple[int, int]] = []
        host, reserve = self.host, min(RESERVE, self.host.num_slots)
        if host.lower is None or not self.costs.move_pays(self._block_tokens, Move.READ):
            return spills
        most = self.num_beside(Move.WRITE)
        while len(spills) < most and host.num_spare < reserve and (spilled := host.spill()) is not None:
            name, slot, to = spilled
            spills.append((slot, to))
            self._unsure.append((self._step, self.disk, name))
        return spills

    def _forget_saves(self) -> None:
        """An admission was refused only after blocks had been taken for it: they will not be saved."""
        for _, store, name in self._unsure[len(self._unsure) - len(self._saves) :]:
            store.forget(name)
        del self._unsure[len(self._unsure) - len(self._saves) :]
        self._saves = []

    def forget_unsure(self) -> None:
        """The scheduler is gone, and its last steps may never be computed, nor anything moved with them."""
        for _, store, name in reversed(self._unsure):
            store.forget(name)
        self._unsure.clear()

    def forget_all(self) -> int:
        """Nothing is found in any store. Returns how many blocks were. Not within an exchange."""
        self._dirty.clear()
        self._unsure.clear()
        return sum(store.clear() for store in self.stores)

    def follow(self, told: Told | None) -> None:
        """See `Allocation.follow`."""

        def of_first_group(key: Key, block: StoredBlock | None) -> None:
            if told is not None and is_of_first_group(key[1]):
                told(key, block)

        for store in self.stores:
            store.told = None if told is None else of_first_group

    def stored(self) -> Iterator[StoredBlock]:
        """Every block of every store."""
        for store in self.stores:
            for name in filter(is_of_first_group, store):
                yield StoredBlock(tier=store.name, name=name)

    def statistics(self) -> tuple[TierStatistics, ...]:
        """How each store stands."""
        return tuple(store.statistics() for store in self.stores)

    def check_integrity(self) -> None:
        """Asserts what must always hold of each."""
        for store in self.stores:
            store.check_integrity()
