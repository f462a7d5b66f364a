"""Followers of the store's blocks. A core: holds the changes that each follower has not been sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

CHANGES_MAX = 65_536

Names = Callable[[bytes], Iterable[bytes]]
"""Returns the names of all blocks of a kind."""


class Changes(NamedTuple):
    """Names that a follower is to be sent."""

    came: list[bytes]
    went: list[bytes]
    came_away: list[bytes]
    went_away: list[bytes]
    reset: bool
    """Everything told before is void."""


class Follower:
    """A follower of the blocks of one kind. A change replaces an earlier one of the same block.

    One that falls too far behind starts over with all blocks.

    Args:
        follows_away: it is told, too, of blocks that have to be fetched before they can be used.
    """

    def __init__(self, kind: bytes, *, follows_away: bool = False) -> None:
        self.kind, self.follows_away = kind, follows_away
        # Whether each name came or went last, and whether it is one of those that have to be fetched.
        self._changes: dict[tuple[bytes, bool], bool] = {}
        self._is_new = True

    def note(self, name: bytes, *, came: bool, away: bool = False) -> None:
        """Record that a block came or went."""
        if self._is_new or (away and not self.follows_away):
            return  # if it is new, all blocks will be sent anyway
        self._changes[name, away] = came
        if len(self._changes) > CHANGES_MAX:
            self._is_new = True
            self._changes.clear()

    def take(self, here: Names, away: Names) -> Changes:
        """Return what came and went since last time.

        Args:
            here, away: all blocks that are in the store, and all that it can fetch.
        """
        if self._is_new:
            self._is_new = False
            fetchable = list(away(self.kind)) if self.follows_away else []
            return Changes(list(here(self.kind)), [], fetchable, [], reset=True)
        changes, self._changes = self._changes, {}
        found = Changes([], [], [], [], reset=False)
        lists = {
            (True, False): found.came,
            (False, False): found.went,
            (True, True): found.came_away,
            (False, True): found.went_away,
        }
        for (name, is_away), came in changes.items():
            lists[came, is_away].append(name)
        return found
