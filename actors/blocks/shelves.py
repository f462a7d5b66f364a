"""Numbers filed under keys, the newest of each first. All is O(1).

A list or dict for each key would be one more object that the garbage collector goes through, for every block that is
cached: those of this whole structure are three dicts of plain numbers, which it leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator

NOBODY = -1


class Shelves:
    """Each number is filed under one key."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._older: dict[int, int] = {}
        self._newer: dict[int, int] = {}

    def add(self, key: bytes, number: int) -> None:
        """Files a number that is not filed."""
        older = self._newest.get(key, NOBODY)
        self._older[number], self._newer[number] = older, NOBODY
        if older != NOBODY:
            self._newer[older] = number
        self._newest[key] = number

    def remove(self, key: bytes, number: int) -> None:
        """Takes a number from where it is filed."""
        older, newer = self._older.pop(number), self._newer.pop(number)
        if older != NOBODY:
            self._newer[older] = newer
        if newer != NOBODY:
            self._older[newer] = older
        elif older != NOBODY:
            self._newest[key] = older
        else:
            del self._newest[key]

    def under(self, key: bytes) -> Iterator[int]:
        """The newest first."""
        number = self._newest.get(key, NOBODY)
        while number != NOBODY:
            yield number
            number = self._older[number]

    def __len__(self) -> int:
        return len(self._older)
