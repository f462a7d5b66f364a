"""Moves of one exchange between the device and the tiers below it: the host's memory, and under it the disk.

A cached block that is about to be evicted is saved first, urgently: its step waits for that. To make urgent
saves rare, the blocks next in line are saved ahead of time, beside a step that computes. `dirty` blocks are
free, cached, and not in the host's memory. As long as fewer than `RESERVE` blocks can be taken without a save,
some dirty ones are saved with each exchange, the longest free first. A saved block stays in the host's memory
when it is restored, so that nothing is saved twice. Blocks of the host's memory are spilled to the disk in the
same route, but never urgently: a block without time for that is lost. A block that is read from the disk goes to
the device, and to the host's memory when it is free there again.

The step that needs a restored block waits for it. Where other requests run, a restore that would take longer
than a step is therefore made beside earlier steps, some blocks with each. Those blocks are cached like any
others while the sequence that wants them is not admitted yet.

Writing every block down as soon as it is computed was rejected: most never leave a device with room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from pageant.actors.blocks.costs import Move, MoveCosts
from pageant.actors.blocks.followers import Key, Listener
from pageant.actors.blocks.partial_blocks import TOKEN_BYTES
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.store import Store
from pageant.protocol.arrays import int32
from pageant.protocol.block_names import block_name, is_of_first_group, name_in_group
from pageant.protocol.following import StoredBlock
from pageant.protocol.tiers import DISK, BlockMoves, TierStatistics

# Blocks that can be taken without a save; at most a quarter of the pool, or all of the host's memory.
RESERVE = 256
# Blocks moved beside a step before any measurement, and the most.
AHEAD = 16
AHEAD_MAX = 64


def _route_to_device(slot: int) -> Move:
    return Move.READ if slot >= DISK else Move.HOST


class Tiers:
    """The tiers below one pool, and the moves of the present exchange.

    Args:
        block_tokens: tokens whose computation a block saves: with several layer groups, its share of them.
        host_slots, disk_slots: blocks that the tiers hold; the disk may have none.
    """

    def __init__(
        self, pool: BlockPool, costs: MoveCosts, block_tokens: float, host_slots: int, disk_slots: int = 0
    ) -> None:
        self.pool, self.costs = pool, costs
        self.disk = Store("disk", disk_slots, DISK)
        self.host = Store("host", host_slots, lower=self.disk if disk_slots else None)
        self.stores = (self.host, self.disk) if disk_slots else (self.host,)
        self._block_tokens = block_tokens
        # Names of dirty blocks, in the order in which they became free.
        self._dirty: OrderedDict[int, bytes] = OrderedDict()
        # Urgent saves of this exchange: block, slot.
        self._saves: list[tuple[int, int]] = []
        # Restores that this exchange's step needs: slot, block.
        self._restores: list[tuple[int, int]] = []
        # Restores beside this exchange's step: slot, block.
        self._restores_ahead: list[tuple[int, int]] = []
        # Step, tier and name of saves and spills whose step may not have been computed.
        self._uncommitted: list[tuple[int, Store, bytes]] = []
        self._step = 0
        # Time of this exchange's step that restores may still take.
        self._seconds_left = 0.0
        pool.on_evicted = self._evicted

    def begin(self, step: int, computed_step: int) -> None:
        """Begin an exchange."""
        self._step = step
        self._seconds_left = self.costs.seconds_per_step or 0.0
        if self._uncommitted:
            self._uncommitted = [entry for entry in self._uncommitted if entry[0] > computed_step]

    # The device gives up blocks.

    def freed(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Note that a sequence freed these named blocks, its last ones first."""
        for block, name in blocks:
            if name not in self.host:
                self._dirty[block] = name
                self._dirty.move_to_end(block)

    def _evicted(self, blocks: list[int], names: list[bytes]) -> None:
        """Save cached blocks that are evicted from this step on, if that pays."""
        pays = self.costs.move_pays(self._block_tokens, Move.HOST, Move.HOST)
        for block, name in zip(blocks, names, strict=True):
            self._dirty.pop(block, None)
            if pays and not any(name in store for store in self.stores):
                self._save(block, name, self._saves)

    def _save(self, block: int, name: bytes, saves: list[tuple[int, int]]) -> None:
        slot = self.host.put(name)
        if slot is not None:
            saves.append((block, slot))
            self._uncommitted.append((self._step, self.host, name))

    # A sequence is admitted.

    def _pin(self, name: bytes) -> int | None:
        """Pin a name in the tier from which restoring it pays. Return its slot, or None."""
        for store, route in zip(self.stores, (Move.HOST, Move.READ), strict=False):
            if name in store and self.costs.move_pays(self._block_tokens, route):
                return store.pin(name)
        return None

    def __contains__(self, name: bytes) -> bool:
        """Tell whether a block of that name is worth restoring."""
        return any(
            name in store and self.costs.move_pays(self._block_tokens, route)
            for store, route in zip(self.stores, (Move.HOST, Move.READ), strict=False)
        )

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Return the slots of the longest prefix of `names` that is worth restoring, pinned for this exchange."""
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
        """Return slots of partly filled blocks, one of each layer group, and their number of tokens.

        They follow `parent` and hold nothing but the first of the `wanted` tokens, more than `more_than` of
        them. Returns ([], 0) if there are none.
        """
        for count in range(len(wanted) // TOKEN_BYTES, more_than, -1):
            if not self.costs.move_pays((count - more_than) / groups, Move.HOST):
                break
            name = block_name(parent, wanted[: TOKEN_BYTES * count])
            slots = self.find(name_in_group(name, group) for group in range(groups))
            if len(slots) == groups:
                return slots, count
        return [], 0

    def time_for(self, slots: Sequence[int]) -> int:
        """Return how many of these slots can be restored before this exchange's step without delaying it."""
        left = self._seconds_left
        for count, slot in enumerate(slots):
            left -= self.costs.seconds_per_move(_route_to_device(slot)) or 0.0
            if left < 0:
                return count
        return len(slots)

    def restore(self, slots: Sequence[int], blocks: Sequence[int], num_tokens: int) -> None:
        """Restore slots with `num_tokens` tokens to blocks before the step computes."""
        self._restores += zip(slots, blocks, strict=True)
        for slot in slots:
            self._seconds_left -= self.costs.seconds_per_move(_route_to_device(slot)) or 0.0
        below = sum(slot >= DISK for slot in slots)
        if slots:
            self.disk.tokens_hit += num_tokens * below // len(slots)
            self.host.tokens_hit += num_tokens - num_tokens * below // len(slots)

    def restore_ahead(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Restore slots to blocks beside the step, for sequences that come later."""
        self._restores_ahead += zip(slots, blocks, strict=True)

    def _store_of(self, slot: int) -> Store:
        return self.disk if slot >= DISK else self.host

    # The exchange ends.

    def end(self, granted: bool) -> BlockMoves | None:
        """End the exchange and return its moves. Where nothing is `granted`, no plan carries moves."""
        spills = self._spill() if granted else []
        ahead = self._save_ahead() if granted else []
        for store in self.stores:
            store.unpin()
        urgent, needed, warmed = self._saves, self._restores, self._restores_ahead
        if not (urgent or ahead or needed or warmed or spills):
            return None
        if not granted:
            assert not needed and not warmed, "what is restored is restored for somebody"
            self._forget_saves()
            return None
        self._saves, self._restores, self._restores_ahead = [], [], []
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

    def num_beside(self, route: Move) -> int:
        """Return how many blocks can be moved along a route while a step computes."""
        step, move = self.costs.seconds_per_step, self.costs.seconds_per_move(route)
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
        """Spill blocks of the host's memory to the disk, so that there is room for saves."""
        spills: list[tuple[int, int]] = []
        host, reserve = self.host, min(RESERVE, self.host.num_slots)
        if host.lower is None or not self.costs.move_pays(self._block_tokens, Move.READ):
            return spills
        most = self.num_beside(Move.WRITE)
        while len(spills) < most and host.num_spare < reserve and (spilled := host.spill()) is not None:
            name, slot, to = spilled
            spills.append((slot, to))
            self._uncommitted.append((self._step, self.disk, name))
        return spills

    def _forget_saves(self) -> None:
        """Drop the saves of this exchange: its admission was refused after blocks had been taken for it."""
        for _, store, name in self._uncommitted[len(self._uncommitted) - len(self._saves) :]:
            store.forget(name)
        del self._uncommitted[len(self._uncommitted) - len(self._saves) :]
        self._saves = []

    def forget_uncommitted(self) -> None:
        """Forget saves and spills of steps that may never be computed: the scheduler is gone."""
        for _, store, name in reversed(self._uncommitted):
            store.forget(name)
        self._uncommitted.clear()

    def forget_all(self) -> int:
        """Empty every tier. Return how many blocks there were. Not to be called within an exchange."""
        self._dirty.clear()
        self._uncommitted.clear()
        return sum(store.clear() for store in self.stores)

    def follow(self, listener: Listener | None) -> None:
        """Call `listener` with the first group's blocks that are stored or removed; see `Allocation.follow`."""

        def of_first_group(key: Key, block: StoredBlock | None) -> None:
            if listener is not None and is_of_first_group(key[1]):
                listener(key, block)

        for store in self.stores:
            store.listener = None if listener is None else of_first_group

    def stored(self) -> Iterator[StoredBlock]:
        """Yield every block of every tier."""
        for store in self.stores:
            for name in filter(is_of_first_group, store):
                yield StoredBlock(tier=store.name, name=name)

    def statistics(self) -> tuple[TierStatistics, ...]:
        """Return the state of each tier."""
        return tuple(store.statistics() for store in self.stores)

    def check_integrity(self) -> None:
        """Assert the invariants of each tier."""
        for store in self.stores:
            store.check_integrity()
