"""Requests sorted by key, in segments: binary search finds a place, and an insertion moves a segment and not
all.

A heap was rejected. With 100,000 entries, each removal compares two on each of 17 levels, most of which are in
no cache, and a request that ends while it waits cannot be removed from its middle. For the same reason a search
goes through the first numbers of a segment's keys, which lie side by side, and through whole keys only where
those are equal.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from pageant.actors.scheduler.request import Key, ScheduledRequest

# Entries of a segment after a split. A segment has at most twice as many.
SEGMENT = 512

Entry = tuple[Key, ScheduledRequest]


class Ordered:
    """Requests with distinct keys, smallest first."""

    def __init__(self) -> None:
        # Segments in order, none of them empty.
        self._segments: list[_Segment] = []
        # The last key of each segment.
        self._lasts: list[Key] = []

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, request: ScheduledRequest) -> None:
        """Insert a request."""
        if not self._segments:
            self._segments, self._lasts = [_Segment([(request.key, request)])], [request.key]
            return
        place = min(bisect_left(self._lasts, request.key), len(self._lasts) - 1)
        segment = self._segments[place]
        segment.insert(segment.place_of(request.key), (request.key, request))
        if len(segment.entries) > 2 * SEGMENT:
            self._segments[place : place + 1] = segment, after = (
                _Segment(segment.entries[:SEGMENT]),
                _Segment(segment.entries[SEGMENT:]),
            )
            self._lasts.insert(place + 1, after.last)
        self._lasts[place] = segment.last

    def remove(self, request: ScheduledRequest) -> None:
        """Remove a request from any place."""
        place = bisect_left(self._lasts, request.key)
        segment = self._segments[place]
        index = segment.place_of(request.key)
        assert segment.entries[index][1] is request, (
            f"request {request.serial} does not stand where its key says"
        )
        self._take_out(place, index)

    def first(self) -> ScheduledRequest:
        """Return the request with the smallest key; there must be one."""
        return self._segments[0].entries[0][1]

    def pop(self) -> ScheduledRequest:
        """Remove and return the request with the smallest key."""
        request = self.first()
        self._take_out(0, 0)
        return request

    def _take_out(self, place: int, index: int) -> None:
        segment = self._segments[place]
        segment.delete(index)
        if segment.entries:
            self._lasts[place] = segment.last
        else:
            del self._segments[place], self._lasts[place]


class _Segment:
    """A segment: entries in order, and the first numbers of their keys."""

    __slots__ = ("entries", "firsts")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.firsts = array("d", [key[0] for key, _ in entries])

    @property
    def last(self) -> Key:
        return self.entries[-1][0]

    def place_of(self, key: Key) -> int:
        """Return the index at which an entry of this key is, or would be."""
        low = bisect_left(self.firsts, key[0])
        high = bisect_right(self.firsts, key[0], low)
        return low if low == high else bisect_left(self.entries, (key,), low, high)

    def insert(self, index: int, entry: Entry) -> None:
        self.entries.insert(index, entry)
        self.firsts.insert(index, entry[0][0])

    def delete(self, index: int) -> None:
        del self.entries[index], self.firsts[index]
