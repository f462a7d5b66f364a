"""Followers of the store's blocks. A core: holds the changes that each follower has not been sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable

CHANGES_MAX = 65_536


class Follower:
    """A follower of the blocks of one kind. A change replaces an earlier one of the same block.

    One that falls too far behind starts over with all blocks.
    """

    def __init__(self, kind: bytes) -> None:
        self.kind = kind
        # Whether each name came or went last.
        self._changes: dict[bytes, bool] = {}
        self._is_new = True

    def note(self, name: bytes, *, came: bool) -> None:
        """Record that a block came or went."""
        if self._is_new:
            return  # all blocks will be sent anyway
        self._changes[name] = came
        if len(self._changes) > CHANGES_MAX:
            self._is_new = True
            self._changes.clear()

    def take(self, everything: Callable[[bytes], Iterable[bytes]]) -> tuple[list[bytes], list[bytes], bool]:
        """Return the names that came, those that went, and whether everything told before is void."""
        if self._is_new:
            self._is_new = False
            return list(everything(self.kind)), [], True
        changes, self._changes = self._changes, {}
        came = [name for name, is_there in changes.items() if is_there]
        return came, [name for name, is_there in changes.items() if not is_there], False
