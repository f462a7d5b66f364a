"""Prompt lookup: what followed the same tokens before, in the prompt or in the output.

After Saxena's prompt lookup decoding (2023) and llama.cpp's and vLLM's n-gram drafters, which scan the text. Here each
sequence has an index: every place is chained to the one before it whose last two tokens fall into the same bucket, so
that the places where the text was alike are found in a few steps, the newest first. Of these the one with the longest
common past is taken. All sequences are looked up at once, in operations on arrays: a step's cost is some
dozens of them, and hardly depends on how many sequences there are or how long they are.

An index takes 16 bytes a token, in rooms of 2^n tokens: 32 at most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.drafting import Speculation

__all__ = ["NgramDrafter"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_ROOM_MIN = 256  # tokens
_CANDIDATES = 6  # places that are looked at
_PAST_MAX = 8  # tokens that are compared at each
_NONE = -1
_MIX_A, _MIX_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


class NgramDrafter:
    """A `Drafter`; see `base`. Sequence by sequence, its tokens, chains and buckets lie in flat arrays."""

    def __init__(self, settings: Speculation | None = None) -> None:
        self._slots: dict[int, int] = {}  # by serial
        self._free_slots: list[int] = []
        self._base = np.zeros(0, np.int64)  # where each slot's room begins
        self._room = np.zeros(0, np.int64)  # tokens that it holds
        self._length = np.zeros(0, np.int64)
        self._free_rooms: dict[int, list[int]] = {}
        self._tokens = np.zeros(0, np.int32)
        self._chain = np.zeros(0, np.int32)  # the place before with the same bucket
        self._heads = np.zeros(0, np.int32)  # the last place of each bucket; twice as many as tokens

    @property
    def num_bytes(self) -> int:
        """Of all indexes."""
        return self._tokens.nbytes + self._chain.nbytes + self._heads.nbytes

    # Sequences.

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """See `Drafter`."""
        self.close(serial)
        slot = self._slots[serial] = self._take_slot()
        self._give_room(slot, len(token_ids))
        self._length[slot] = 0
        self._fill(slot, token_ids)

    def close(self, serial: int) -> None:
        """See `Drafter`."""
        slot = self._slots.pop(serial, None)
        if slot is not None:
            self._free_rooms.setdefault(int(self._room[slot]), []).append(int(self._base[slot]))
            self._free_slots.append(slot)

    def _take_slot(self) -> int:
        if not self._free_slots:
            count = len(self._base)
            more = max(16, count)
            self._base, self._room, self._length = (
                np.concatenate([column, np.zeros(more, np.int64)])
                for column in (self._base, self._room, self._length)
            )
            self._free_slots = list(range(count, count + more))[::-1]
        return self._free_slots.pop()

    def _give_room(self, slot: int, tokens: int) -> None:
        room = _ROOM_MIN
        while room < tokens + 1:
            room *= 2
        free = self._free_rooms.get(room)
        base = free.pop() if free else self._more(room)
        self._base[slot], self._room[slot] = base, room
        self._heads[2 * base : 2 * (base + room)] = _NONE

    def _more(self, room: int) -> int:
        base = len(self._tokens)
        self._tokens = np.concatenate([self._tokens, np.zeros(room, np.int32)])
        self._chain = np.concatenate([self._chain, np.full(room, _NONE, np.int32)])
        self._heads = np.concatenate([self._heads, np.full(2 * room, _NONE, np.int32)])
        return base

    def _move(self, slot: int) -> None:
        """A sequence has outgrown its room."""
        base, room, length = (int(column[slot]) for column in (self._base, self._room, self._length))
        tokens = self._tokens[base : base + length].copy()
        self._free_rooms.setdefault(room, []).append(base)
        self._give_room(slot, 2 * room - 1)
        self._length[slot] = 0
        self._fill(slot, tokens)

    # Tokens.

    def _buckets(self, slots: Int64 | int, before: Int32, last: Int32) -> Int64:
        """Where the bucket of a place is that ends with these two tokens."""
        mixed = before.astype(np.uint64) * _MIX_A + last.astype(np.uint64) * _MIX_B
        mixed ^= mixed >> np.uint64(29)
        within = (mixed * _MIX_A) >> np.uint64(20)
        size = 2 * self._room[slots]
        found: Int64 = 2 * self._base[slots] + (within.astype(np.int64) & (size - 1))
        return found

    def _fill(self, slot: int, token_ids: Int32Vector) -> None:
        """All tokens of an empty sequence at once."""
        base, count = int(self._base[slot]), len(token_ids)
        self._tokens[base : base + count] = token_ids
        self._length[slot] = count
        if count < 2:
            return
        buckets = self._buckets(slot, token_ids[:-1], token_ids[1:])
        order = np.argsort(buckets, kind="stable")
        places = (order + 1).astype(np.int32)  # of the second token
        same = np.concatenate([[False], buckets[order][1:] == buckets[order][:-1]])
        self._chain[base + places] = np.where(same, np.roll(places, 1), _NONE)
        self._chain[base] = _NONE
        self._heads[buckets[order]] = places  # of several, the last is the one that stays

    def _append(self, slots: Int64, token_ids: Int32) -> None:
        """One token to each of some distinct sequences."""
        full = slots[self._length[slots] >= self._room[slots]]
        for slot in full.tolist():
            self._move(slot)
        places, bases = self._length[slots], self._base[slots]
        at = bases + places
        self._tokens[at] = token_ids
        self._length[slots] = places + 1
        paired = places > 0
        if not paired.all():
            self._chain[at[~paired]] = _NONE
            slots, places, at, token_ids = slots[paired], places[paired], at[paired], token_ids[paired]
        buckets = self._buckets(slots, self._tokens[at - 1], token_ids)
        self._chain[at] = self._heads[buckets]
        self._heads[buckets] = places

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """See `Drafter`."""
        slots = np.fromiter(map(self._slots.__getitem__, serials.tolist()), np.int64, len(serials))
        first = np.cumsum(counts) - counts
        for place in range(int(counts.max(initial=0))):
            some = counts > place
            if some.all():
                self._append(slots, token_ids[first + place])
            else:
                self._append(slots[some], token_ids[first[some] + place])
        origins = self._look_up(slots)
        return self._continue(slots, origins, wanted)

    # Looking up.

    def _look_up(self, slots: Int64) -> Int64:
        """The place, within each sequence, with the longest common past; `_NONE` where there is none."""
        bases, lengths = self._base[slots], self._length[slots]
        last = bases + lengths - 1
        back = np.arange(_PAST_MAX)
        past = self._past(last, lengths, back, -2)
        best = np.full(len(slots), _NONE, np.int64)
        longest = np.ones(len(slots), np.int64)  # two tokens at least
        place = np.where(lengths > 1, self._chain[np.maximum(last, 0)], _NONE).astype(np.int64)
        for _ in range(_CANDIDATES):
            there = place >= 0
            if not there.any():
                break
            candidate = self._past(bases + np.maximum(place, 0), place + 1, back, -3)
            alike = np.where(there, (candidate == past).cumprod(axis=1).sum(axis=1), 0)
            better = alike > longest
            best[better], longest[better] = place[better], alike[better]
            place = np.where(there, self._chain[bases + np.maximum(place, 0)], _NONE).astype(np.int64)
        return best

    def _past(self, at: Int64, known: Int64, back: Int64, missing: int) -> Int32:
        """The tokens before and at some places, the newest first; `missing` where there are none."""
        tokens = self._tokens[np.maximum(at[:, None] - back, 0)]
        found: Int32 = np.where(back < known[:, None], tokens, np.int32(missing))
        return found

    def _continue(self, slots: Int64, origins: Int64, wanted: Int32) -> tuple[Int32Vector, Int32Vector]:
        """What followed the origins. Where that is the end of the text, it goes on as it would if repeated."""
        found = origins >= 0
        counts = np.where(found, wanted, 0).astype(np.int32)
        if not counts.any():
            return counts, int32()
        rows = np.repeat(np.arange(len(slots)), counts)
        ahead = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        period = (self._length[slots] - 1 - origins)[rows]
        places = self._base[slots][rows] + origins[rows] + 1 + ahead % period
        return counts, self._tokens[places]
