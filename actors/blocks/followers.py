"""Followers of the cached blocks. A core: holds the changes that each follower has not been sent.

A change replaces an earlier one of the same block, so that a slow follower gets fewer events rather than later
ones. A follower that falls too far behind starts over with all blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from pageant.protocol.following import BlockEvents, RemovedBlock, StoredBlock

CHANGES_MAX = 65_536
# Blocks in one message.
BATCH = 2048

# Tier and name of a block.
Key = tuple[str, bytes]
Listener = Callable[[Key, StoredBlock | None], object]


class Follower:
    """A follower, with the changes to send to it.

    Args:
        tokens: it wants the tokens of each block.
    """

    def __init__(self, *, tokens: bool = True) -> None:
        self._tokens = tokens
        # The latest change of each block: stored, or None for removed.
        self._changes: dict[Key, StoredBlock | None] = {}
        # The follower gets all blocks next, and `_changes` is empty.
        self._is_new = True

    def note(self, key: Key, block: StoredBlock | None) -> None:
        """Record that a block was stored, or removed (None)."""
        if self._is_new:
            # All blocks will be sent anyway.
            return
        self._changes[key] = block
        if len(self._changes) > CHANGES_MAX:
            self.start_over()

    def start_over(self) -> None:
        """Send all blocks next: earlier events are void."""
        self._is_new = True
        self._changes.clear()

    @property
    def has_events(self) -> bool:
        """Tell whether there is anything to send."""
        return self._is_new or bool(self._changes)

    def take(
        self, epoch: int, block_size: int, everything: Callable[[], Iterable[StoredBlock]]
    ) -> Iterator[BlockEvents]:
        """Return the events to send to this follower now. Changes that come meanwhile are sent after them."""
        reset, self._is_new = self._is_new, False
        changes, self._changes = self._changes, {}
        removed = (RemovedBlock(tier=tier, name=name) for (tier, name), block in changes.items() if not block)
        found = list(everything()) if reset else [block for block in changes.values() if block]
        if not self._tokens:
            found = [msgspec.structs.replace(block, token_ids=None) for block in found]
        parts, gone = _parts(found), tuple(removed)
        for part in parts if found else [()]:
            yield BlockEvents(epoch=epoch, block_size=block_size, stored=part, removed=gone, reset=reset)
            reset, gone = False, ()


def _parts(blocks: Iterable[StoredBlock]) -> Iterator[tuple[StoredBlock, ...]]:
    rest = iter(blocks)
    while part := tuple(islice(rest, BATCH)):
        yield part
