"""Those who are told which blocks there are. A core: what each has still to be told.

A change takes the place of an earlier one of the same block, so that a follower who is slow is told less and not
later. One who has fallen too far behind begins anew, with all that there is then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from pageant.protocol.following import BlockEvents, RemovedBlock, StoredBlock

CHANGES_MAX = 65_536
BATCH = 2048  # blocks in one message

Key = tuple[str, bytes]  # tier and name
Told = Callable[[Key, StoredBlock | None], object]


class Follower:
    """One of them."""

    def __init__(self) -> None:
        self._changes: dict[Key, StoredBlock | None] = {}
        self._is_new = True

    def note(self, key: Key, block: StoredBlock | None) -> None:
        """That block is stored, or there no more."""
        if self._is_new:
            return  # it is told of everything
        self._changes[key] = block
        if len(self._changes) > CHANGES_MAX:
            self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing that it knows is of use."""
        self._is_new = True
        self._changes.clear()

    @property
    def has_news(self) -> bool:
        """Whether there is anything to tell it."""
        return self._is_new or bool(self._changes)

    def take(
        self, epoch: int, block_size: int, everything: Callable[[], Iterable[StoredBlock]]
    ) -> Iterator[BlockEvents]:
        """What it is to be told now. What happens while it is takes its turn after that."""
        reset, self._is_new = self._is_new, False
        changes, self._changes = self._changes, {}
        removed = (RemovedBlock(tier=tier, name=name) for (tier, name), block in changes.items() if not block)
        found = list(everything()) if reset else [block for block in changes.values() if block]
        parts, gone = _parts(found), tuple(removed)
        for part in parts if found else [()]:
            yield BlockEvents(epoch=epoch, block_size=block_size, stored=part, removed=gone, reset=reset)
            reset, gone = False, ()


def _parts(blocks: Iterable[StoredBlock]) -> Iterator[tuple[StoredBlock, ...]]:
    rest = iter(blocks)
    while part := tuple(islice(rest, BATCH)):
        yield part
