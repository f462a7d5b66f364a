"""The tail index: numbers by key, the newest of each key first. All operations are O(1).

A list or dict for each key would be one more object for the garbage collector, for every cached block. This
structure consists of three dicts of plain numbers, which the collector skips. A number that is alone under its
key, as most are, is in the first dict only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# The end of a chain of numbers.
NO_NUMBER = -1


class TailIndex:
    """Numbers by key; each number has one key."""

    def __init__(self) -> None:
        # The newest number of each key.
        self._newest: dict[bytes, int] = {}
        # The next older number of the same key; absent for the oldest.
        self._older: dict[int, int] = {}
        # The next newer number of the same key; absent for the newest.
        self._newer: dict[int, int] = {}

    def add(self, numbers: Iterable[int], keys: Iterable[bytes]) -> None:
        """Add numbers that are not in the index, each under its key."""
        newest = self._newest
        for number, key in zip(numbers, keys, strict=True):
            older = newest.get(key, NO_NUMBER)
            newest[key] = number
            if older != NO_NUMBER:
                self._older[number], self._newer[older] = older, number

    def remove(self, numbers: Iterable[int], keys: Iterable[bytes]) -> None:
        """Remove numbers, each from its key."""
        for number, key in zip(numbers, keys, strict=True):
            if number in self._older or number in self._newer:
                self._remove_among_others(number, key)
            else:
                del self._newest[key]

    def _remove_among_others(self, number: int, key: bytes) -> None:
        older, newer = self._older.pop(number, NO_NUMBER), self._newer.pop(number, NO_NUMBER)
        if newer != NO_NUMBER:
            _link(self._older, newer, older)
        else:
            self._newest[key] = older
        if older != NO_NUMBER:
            _link(self._newer, older, newer)

    def under(self, key: bytes) -> Iterator[int]:
        """Yield the numbers of a key, the newest first."""
        number = self._newest.get(key, NO_NUMBER)
        while number != NO_NUMBER:
            yield number
            number = self._older.get(number, NO_NUMBER)

    def __len__(self) -> int:
        return len(self._newest) + len(self._older)


def _link(links: dict[int, int], number: int, to: int) -> None:
    if to != NO_NUMBER:
        links[number] = to
    else:
        del links[number]
