"""Queues of what is held back for a while, by key and in order, within a bound."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

HELD_MAX = 65_536
"""The most that one `Held` keeps, of all keys together."""


class Held(Generic[T]):
    """Items that wait, by key and in the order in which they came."""

    def __init__(self) -> None:
        # No list is empty.
        self._items: dict[str, list[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def add(self, key: str, item: T) -> bool:
        """Hold an item back. Return False where there are too many already."""
        if self._count >= HELD_MAX:
            return False
        self._count += 1
        self._items.setdefault(key, []).append(item)
        return True

    def firsts(self) -> list[tuple[str, T]]:
        """Return each key with its first item."""
        return [(key, items[0]) for key, items in self._items.items()]

    def take(self, key: str) -> list[T]:
        """Return the items of a key, which are held no longer."""
        items = self._items.pop(key, [])
        self._count -= len(items)
        return items
