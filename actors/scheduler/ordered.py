"""Requests by key, in pieces: a place is found by binary search, and what moves is a piece and not all.

A heap was turned down: of 100,000 entries, each removal compares two on each of 17 levels, most of which are in
no cache, and a request that ends while it waits cannot be taken out of its middle. For the same reason a search goes
through the first numbers of a piece's keys, which lie side by side, and only where those are alike through the keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from pageant.actors.scheduler.request import Key, ScheduledRequest

PIECE = 512  # entries, twice as many at most

Entry = tuple[Key, ScheduledRequest]


class Ordered:
    """Requests with distinct keys, smallest first."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # none of them empty
        self._lasts: list[Key] = []  # the last key of each

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, request: ScheduledRequest) -> None:
        """Puts a request in its place."""
        if not self._pieces:
            self._pieces, self._lasts = [_Piece([(request.key, request)])], [request.key]
            return
        place = min(bisect_left(self._lasts, request.key), len(self._lasts) - 1)
        piece = self._pieces[place]
        piece.insert(piece.place_of(request.key), (request.key, request))
        if len(piece.entries) > 2 * PIECE:
            self._pieces[place : place + 1] = piece, after = (
                _Piece(piece.entries[:PIECE]),
                _Piece(piece.entries[PIECE:]),
            )
            self._lasts.insert(place + 1, after.last)
        self._lasts[place] = piece.last

    def remove(self, request: ScheduledRequest) -> None:
        """Takes out a request, wherever it stands."""
        place = bisect_left(self._lasts, request.key)
        piece = self._pieces[place]
        index = piece.place_of(request.key)
        assert piece.entries[index][1] is request, (
            f"request {request.serial} does not stand where its key says"
        )
        self._take_out(place, index)

    def first(self) -> ScheduledRequest:
        """The one with the smallest key; there must be one."""
        return self._pieces[0].entries[0][1]

    def pop(self) -> ScheduledRequest:
        """Takes it out."""
        request = self.first()
        self._take_out(0, 0)
        return request

    def _take_out(self, place: int, index: int) -> None:
        piece = self._pieces[place]
        piece.delete(index)
        if piece.entries:
            self._lasts[place] = piece.last
        else:
            del self._pieces[place], self._lasts[place]


class _Piece:
    """Entries in order, and the first numbers of their keys."""

    __slots__ = ("entries", "firsts")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.firsts = array("d", [key[0] for key, _ in entries])

    @property
    def last(self) -> Key:
        return self.entries[-1][0]

    def place_of(self, key: Key) -> int:
        """Where an entry of this key stands, or would."""
        low = bisect_left(self.firsts, key[0])
        high = bisect_right(self.firsts, key[0], low)
        return low if low == high else bisect_left(self.entries, (key,), low, high)

    def insert(self, index: int, entry: Entry) -> None:
        self.entries.insert(index, entry)
        self.firsts.insert(index, entry[0][0])

    def delete(self, index: int) -> None:
        del self.entries[index], self.firsts[index]
