"""Requests by key, in pieces: a place is found by binary search, and what moves is a piece and not all.

A heap was turned down: of 100,000 entries, each removal compares two on each of 17 levels, most of which are in
no cache, and a request that ends while it waits cannot be taken out of its middle.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from pageant.actors.scheduler.request import Key, ScheduledRequest

PIECE = 512  # entries, twice as many at most

Entry = tuple[Key, ScheduledRequest]


class Ordered:
    """Requests with distinct keys, smallest first."""

    def __init__(self) -> None:
        self._pieces: list[list[Entry]] = []  # none of them empty
        self._lasts: list[Key] = []  # the last key of each

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, request: ScheduledRequest) -> None:
        """Puts a request in its place."""
        entry = (request.key, request)
        if not self._pieces:
            self._pieces, self._lasts = [[entry]], [request.key]
            return
        place = min(bisect_left(self._lasts, request.key), len(self._lasts) - 1)
        piece = self._pieces[place]
        insort(piece, entry)
        if len(piece) > 2 * PIECE:
            self._pieces.insert(place + 1, piece[PIECE:])
            self._lasts.insert(place + 1, piece[-1][0])
            del piece[PIECE:]
        self._lasts[place] = piece[-1][0]

    def remove(self, request: ScheduledRequest) -> None:
        """Takes out a request, wherever it stands."""
        place = bisect_left(self._lasts, request.key)
        piece = self._pieces[place]
        index = bisect_left(piece, (request.key,))
        assert piece[index][1] is request, f"request {request.serial} does not stand where its key says"
        self._take_out(place, index)

    def first(self) -> ScheduledRequest:
        """The one with the smallest key; there must be one."""
        return self._pieces[0][0][1]

    def pop(self) -> ScheduledRequest:
        """Takes it out."""
        request = self.first()
        self._take_out(0, 0)
        return request

    def _take_out(self, place: int, index: int) -> None:
        piece = self._pieces[place]
        del piece[index]
        if piece:
            self._lasts[place] = piece[-1][0]
        else:
            del self._pieces[place], self._lasts[place]
