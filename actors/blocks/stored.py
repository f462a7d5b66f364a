"""A pool's part in a store: which blocks are saved there, and which come from there. A core: no I/O, no clock.

A full block is queued when it is named. It is held while it is copied, so that nobody gets it meanwhile. A sequence
that could begin with blocks of the store waits: the pool gives blocks for them, they are copied beside other work,
and are cached like any others once each was found whole. Only then is the sequence admitted. Nothing is ever computed
from a block that may be wrong, so that nothing need be taken back.

Sequences with embeddings of their own are left out: the names of their blocks mean nothing elsewhere.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from pageant.actors.blocks.costs import Move, MoveCosts
from pageant.actors.blocks.groups import NO_BLOCK, Groups
from pageant.actors.blocks.partial_blocks import TOKEN_BYTES
from pageant.actors.blocks.pool import BlockPool
from pageant.actors.blocks.sequence import Filled, Sequence
from pageant.protocol.arrays import BoolVector, Int64Vector
from pageant.protocol.block_names import NAME_BYTES, name_in_group
from pageant.protocol.storing import NO_SLOT
from pageant.protocol.tiers import TierStatistics

QUEUE_MAX = 65_536
TRIES_MAX = 3
"""How often a sequence waits for blocks: what came may have been evicted before it was admitted."""
SEQUENCES_MAX = 4096
"""Waiting sequences whose tries are remembered."""


def stored_name(kind: bytes, name: bytes) -> bytes:
    """Return the name of a block in a store, from its name on a device whose blocks are of that kind."""
    return blake2b(kind + name, digest_size=NAME_BYTES).digest()


class Mirror:
    """The names that a store has announced, in the life that it is in.

    Attributes:
        names: of blocks that are there, or are being saved.
        away: of blocks that the store has to fetch first. They may be in `names` too.
    """

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.away: set[bytes] = set()

    def change(self, came: Iterable[bytes], went: Iterable[bytes], *, reset: bool) -> None:
        """Take in the store's events."""
        if reset:
            self.clear()
        self.names.difference_update(went)
        self.names.update(came)

    def change_away(self, came: Iterable[bytes], went: Iterable[bytes]) -> None:
        """Take in the store's events of what it has to fetch, after `change`."""
        self.away.difference_update(went)
        self.away.update(came)

    def clear(self) -> None:
        """Forget everything: the store is gone, or is another."""
        self.names.clear()
        self.away.clear()


@dataclass(eq=False, slots=True)
class Transfer:
    """Blocks that are copied, or about to be. They are held until it ends."""

    names: list[bytes]
    """The names of the blocks, one of each layer group by its own."""
    blocks: list[int]
    step: int
    """The last exchange whose plan may still use them."""
    slots: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Arrival(Transfer):
    """Blocks that come from the store."""

    serial: int = 0
    """The sequence that waits for them."""
    sequence: Sequence | None = None
    """The names and contents of that sequence's block groups."""
    places: list[int] = field(default_factory=list)
    """Where each block belongs among those of the sequence."""
    held: list[int] = field(default_factory=list)
    """Blocks of the device that the sequence begins with; they stay until the others are there."""
    is_late: bool = False
    """Nobody waits for it any more."""
    is_void: bool = False
    """All cached blocks were forgotten meanwhile: nothing of this is cached."""


class StoredBlocks:
    """Blocks that one pool saves in a store, and has from there.

    Args:
        mirror: what is in the store.
        block_tokens: tokens whose computation a block saves.
    """

    def __init__(
        self,
        pool: BlockPool,
        groups: Groups,
        mirror: Mirror,
        costs: MoveCosts,
        kind: bytes,
        block_tokens: float,
    ) -> None:
        self.pool, self.groups, self.mirror, self.costs, self.kind = pool, groups, mirror, costs, kind
        self.block_tokens = block_tokens
        # Names of blocks that may have to be saved, with the exchange that granted their tokens, the eldest first.
        self._queue: OrderedDict[bytes, int] = OrderedDict()
        # Names blocks of sequences, so that they are found; see `Prefixes.index`.
        self.index: Callable[[Iterable[Filled]], None]
        # Saves and restores that the shell has begun or will, until they end or the executor is gone. Each holds its
        # blocks.
        self._transfers: set[Transfer] = set()
        # Arrivals that the shell has not taken yet.
        self._wanted: list[Arrival] = []
        # Restores that were tried for each sequence, by serial, the eldest first: at most TRIES_MAX each, and
        # SEQUENCES_MAX sequences.
        self._tries: OrderedDict[int, int] = OrderedDict()
        # An admission was refused while transfers hold blocks, and no sequence holds any: see `awaits_room`.
        self._room_is_awaited = False
        self.saved = self.restored = self.spoilt = self.tokens_restored = 0

    def full_name(self, name: bytes) -> bytes:
        """Return a block's name in the store."""
        return stored_name(self.kind, name)

    # Saving.

    def note(self, filled: Iterable[Filled]) -> None:
        """Queue full blocks that have just been named."""
        full = TOKEN_BYTES * self.groups.block_size
        for sequence, _, names, contents, step, _ in filled:
            if sequence.is_local or not names or len(contents[-1]) < full:
                continue
            for name in names:
                for group in range(len(self.groups)):
                    self._queue[name_in_group(name, group)] = step
        while len(self._queue) > QUEUE_MAX:
            self._queue.popitem(last=False)

    def take_unsaved(self, most: int) -> dict[bytes, int]:
        """Return cached blocks that the store has not, at most so many: names, and when they are computed."""
        found: dict[bytes, int] = {}
        names, pool = self.mirror.names, self.pool
        while self._queue and len(found) < most:
            name, step = self._queue.popitem(last=False)
            if name in pool and self.full_name(name) not in names:
                found[name] = step
        return found

    @property
    def has_unsaved(self) -> bool:
        """Tell whether blocks are queued."""
        return bool(self._queue)

    def begin_save(self, due: dict[bytes, int], slots: Int64Vector, generations: Int64Vector) -> Transfer:
        """Hold the blocks that are still cached and have a slot, until `end_save`.

        slots, generations: int64 [N], of the N blocks that are due.
        """
        save = Transfer([], [], max(due.values(), default=0))
        columns = zip(due, slots.tolist(), generations.tolist(), strict=True)
        for name, slot, generation in columns:
            if slot != NO_SLOT and (blocks := self.pool.match([name])):
                save.names.append(name)
                save.blocks += blocks
                save.slots.append(slot)
                save.generations.append(generation)
        self._transfers.add(save)
        return save

    def end_save(self, save: Transfer, ok: BoolVector) -> None:
        """Release the blocks of a save, of which those that are `ok`, bool [N], are in the store."""
        self._transfers.discard(save)
        self.pool.free(save.blocks)
        self.saved += int(ok.sum())

    # Restoring.

    def wait(self, sequence: Sequence, total: int, serial: int, step: int, *, ahead: bool = False) -> bool:
        """Return whether a sequence of `total` tokens is to wait for blocks of the store. Begins to fetch them.

        Args:
            step: the last exchange that granted anything.
            ahead: others are admitted before it: half of the free blocks are left to them.
        """
        if any(arrival.serial == serial for arrival in self._arrivals()):
            return True
        size, tries = self.groups.block_size, self._tries.get(serial, 0)
        if sequence.is_local or tries >= TRIES_MAX or not self.costs.move_pays(self.block_tokens, Move.HOST):
            return False
        names = sequence.names[: (total - 1) // size]
        num_full = self.groups.longest(len(names), lambda group, index: self._has(names[index], group))
        arrival = self._missing(sequence, num_full, serial, step)
        needed = -(-total // size) * len(self.groups)
        if arrival is None or not self._make_room(arrival, 2 * needed if ahead else needed):
            return False
        self._tries[serial] = tries + 1
        if len(self._tries) > SEQUENCES_MAX:
            self._tries.popitem(last=False)
        self._transfers.add(arrival)
        self._wanted.append(arrival)
        return True

    def _arrivals(self) -> Iterator[Arrival]:
        return (one for one in self._transfers if isinstance(one, Arrival) and not one.is_late)

    def _has(self, name: bytes, group: int) -> bool:
        own = name_in_group(name, group)
        return own in self.pool or self._is_stored(self.full_name(own))

    def _is_stored(self, full: bytes) -> bool:
        mirror = self.mirror
        return full in mirror.names or (
            full in mirror.away and self.costs.move_pays(self.block_tokens, Move.FETCH, Move.HOST)
        )

    def has_to_fetch(self, arrival: Arrival) -> bool:
        """Tell whether any block of an arrival has to be fetched first."""
        return any(self.full_name(name) not in self.mirror.names for name in arrival.names)

    def _missing(self, sequence: Sequence, num_full: int, serial: int, step: int) -> Arrival | None:
        """Return the blocks that a sequence lacks of its first `num_full` block groups; None if there are none."""
        count, end = len(self.groups), num_full * self.groups.block_size
        firsts = [self.groups.first(group, end) for group in range(count)]
        arrival = Arrival([], [], step, serial=serial)
        present: list[bytes] = []
        for index, name in enumerate(sequence.names[:num_full]):
            for group, first in enumerate(firsts):
                own = name_in_group(name, group)
                if index < first:
                    continue
                if own in self.pool:
                    present.append(own)
                else:
                    arrival.names.append(own)
                    arrival.places.append(index * count + group)
        if not arrival.names:
            return None
        for own in present:
            arrival.held += self.pool.match([own])
        empty = [NO_BLOCK] * (num_full * count)
        names, contents = sequence.names[:num_full], sequence.contents[:num_full]
        arrival.sequence = Sequence(sequence.columns, sequence.slot, sequence.root, empty, names, contents)
        return arrival

    def _make_room(self, arrival: Arrival, needed: int) -> bool:
        """Take blocks for an arrival, where there is room for `needed` blocks."""
        if needed - len(arrival.held) > self.pool.num_free:
            self.pool.free(arrival.held)
            return False
        arrival.blocks = self.pool.take(len(arrival.names))
        return True

    def awaits_room(self) -> bool:
        """Return whether a refused admission may fit once transfers have ended. `take_room_awaited` then says when
        to ask again.
        """
        self._room_is_awaited = bool(self._transfers)
        return self._room_is_awaited

    def take_room_awaited(self) -> bool:
        """Return, once, whether an admission waits for the blocks of a transfer that has just ended."""
        awaited, self._room_is_awaited = self._room_is_awaited, False
        return awaited

    def take_arrivals(self) -> list[Arrival]:
        """Return the arrivals that are to be fetched now."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def give_up(self, arrival: Arrival) -> None:
        """Let a sequence be computed whose blocks are late. They are still copied to where nobody else writes."""
        arrival.is_late = True
        self._tries[arrival.serial] = TRIES_MAX

    def end_arrival(self, arrival: Arrival, ok: BoolVector, *, stale: bool = False) -> None:
        """Cache those blocks of an arrival that hold what their names say, and release all of it.

        Args:
            ok: bool [N], which blocks were found whole.
            stale: nothing was tried.
        """
        sequence = arrival.sequence
        assert sequence is not None, "an arrival is for a sequence"
        whole = [] if arrival.is_void or stale else np.flatnonzero(ok).tolist()
        for index in whole:
            sequence.blocks[arrival.places[index]] = arrival.blocks[index]
        places = sorted({arrival.places[index] // len(self.groups) for index in whole})
        self.index(
            Filled(sequence, place, [sequence.names[place]], [sequence.contents[place]], 0)
            for place in places
        )
        self.restored += len(whole)
        self.tokens_restored += len(places) * self.groups.block_size
        if not stale:
            gone = [self.full_name(name) for index, name in enumerate(arrival.names) if not ok[index]]
            if not self.mirror.away.isdisjoint(gone):
                self._tries[arrival.serial] = TRIES_MAX  # what did not come in time is not waited for again
            here = self.mirror.names.intersection(gone)
            self.spoilt += len(here)
            self.mirror.names.difference_update(here)
        self._transfers.discard(arrival)
        self.pool.free([*arrival.held, *arrival.blocks])

    # The rest.

    def admitted(self, serial: int) -> None:
        """Forget the tries of a sequence that was admitted."""
        self._tries.pop(serial, None)

    def forget(self) -> None:
        """Forget all blocks that are to be saved, or that are on their way."""
        self._queue.clear()
        for arrival in self._transfers:
            if isinstance(arrival, Arrival):
                arrival.is_void = True

    def scheduler_gone(self) -> None:
        """Forget what belongs to sequences: their scheduler is gone. Serials may come again."""
        self._tries.clear()
        self._queue.clear()
        for arrival in self._transfers:
            if isinstance(arrival, Arrival):
                arrival.is_late = True

    def held(self) -> Counter[int]:
        """Return how often each block is held here."""
        found: Counter[int] = Counter()
        for transfer in self._transfers:
            found.update(transfer.blocks)
            if isinstance(transfer, Arrival):
                found.update(transfer.held)
        return found

    def statistics(self) -> tuple[TierStatistics]:
        """Return the state of the store as far as this pool has to do with it."""
        names, away = self.mirror.names, self.mirror.away
        found = TierStatistics(
            name="store",
            num_blocks=len(names | away),
            blocks_used=len(names),
            blocks_saved=self.saved,
            blocks_restored=self.restored,
            blocks_lost=self.spoilt,
            tokens_hit=self.tokens_restored,
        )
        return (found,)
