"""Numbers filed under keys, the newest of each first. All is O(1).

A list or dict for each key would be one more object that the garbage collector goes through, for every block that is
cached: those of this whole structure are three dicts of plain numbers, which it leaves alone. Of a number that is alone
under its key, as most are, only the first of them knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

NOBODY = -1


class Shelves:
    """Each number is filed under one key."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._older: dict[int, int] = {}  # than each that is not the oldest
        self._newer: dict[int, int] = {}  # than each that is not the newest

    def add(self, numbers: Iterable[int], keys: Iterable[bytes]) -> None:
        """Files numbers that are not filed, each under its key."""
        newest = self._newest
        for number, key in zip(numbers, keys, strict=True):
            older = newest.get(key, NOBODY)
            newest[key] = number
            if older != NOBODY:
                self._older[number], self._newer[older] = older, number

    def remove(self, numbers: Iterable[int], keys: Iterable[bytes]) -> None:
        """Takes numbers from where they are filed."""
        for number, key in zip(numbers, keys, strict=True):
            if number in self._older or number in self._newer:
                self._remove_among_others(number, key)
            else:
                del self._newest[key]

    def _remove_among_others(self, number: int, key: bytes) -> None:
        older, newer = self._older.pop(number, NOBODY), self._newer.pop(number, NOBODY)
        if newer != NOBODY:
            _link(self._older, newer, older)
        else:
            self._newest[key] = older
        if older != NOBODY:
            _link(self._newer, older, newer)

    def under(self, key: bytes) -> Iterator[int]:
        """The newest first."""
        number = self._newest.get(key, NOBODY)
        while number != NOBODY:
            yield number
            number = self._older.get(number, NOBODY)

    def __len__(self) -> int:
        return len(self._newest) + len(self._older)


def _link(links: dict[int, int], number: int, to: int) -> None:
    if to != NOBODY:
        links[number] = to
    else:
        del links[number]
