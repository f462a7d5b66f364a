"""Prompt lookup: drafts what followed the same tokens before, in the prompt or in the output.

After Saxena's prompt lookup decoding (2023) and llama.cpp's and vLLM's n-gram drafters, which scan the text.
Here each sequence has an index. Every position is chained to the one before it whose last two tokens fall into
the same bucket, so that similar positions are found in a few steps, the newest first. The one with the longest
common past is taken. All sequences are looked up at once, in operations on arrays. A step costs some dozens of
them, and hardly depends on how many sequences there are or how long they are.

An index takes 16 bytes a token, in regions of 2^n tokens: 32 at most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.drafting import Speculation

__all__ = ["NgramDrafter"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# Tokens of the smallest region.
_REGION_MIN = 256
# Positions that are compared, and the tokens that are compared at each.
_CANDIDATES = 6
_PAST_MAX = 8
# The end of a chain of positions.
_NO_POSITION = -1
_MIX_A, _MIX_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


class NgramDrafter:
    """A `Drafter`; see `base`. Tokens, chains and buckets of all sequences are in flat arrays."""

    def __init__(self, settings: Speculation | None = None) -> None:
        # The slot of each sequence, by serial.
        self._slots: dict[int, int] = {}
        self._free_slots: list[int] = []
        # int64 [slots]: the beginning of each slot's region.
        self._base = np.zeros(0, np.int64)
        # int64 [slots]: the tokens that the region holds; a power of two.
        self._capacity = np.zeros(0, np.int64)
        # int64 [slots]: known tokens; at most `_capacity`.
        self._length = np.zeros(0, np.int64)
        # Beginnings of free regions, by size.
        self._free_regions: dict[int, list[int]] = {}
        # int32: tokens of all regions.
        self._tokens = np.zeros(0, np.int32)
        # int32: for each token, the position before it in the same bucket, or _NO_POSITION.
        self._chain = np.zeros(0, np.int32)
        # int32: the last position of each bucket; twice as many as tokens.
        self._heads = np.zeros(0, np.int32)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all indexes."""
        return self._tokens.nbytes + self._chain.nbytes + self._heads.nbytes

    # Sequences.

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """Follow a sequence; token_ids: int32 [tokens]. See `Drafter`."""
        self.close(serial)
        slot = self._slots[serial] = self._take_slot()
        self._take_region(slot, len(token_ids))
        self._length[slot] = 0
        self._fill(slot, token_ids)

    def close(self, serial: int) -> None:
        """See `Drafter`."""
        slot = self._slots.pop(serial, None)
        if slot is not None:
            self._free_regions.setdefault(int(self._capacity[slot]), []).append(int(self._base[slot]))
            self._free_slots.append(slot)

    def _take_slot(self) -> int:
        if not self._free_slots:
            count = len(self._base)
            more = max(16, count)
            self._base, self._capacity, self._length = (
                np.concatenate([column, np.zeros(more, np.int64)])
                for column in (self._base, self._capacity, self._length)
            )
            self._free_slots = list(range(count, count + more))[::-1]
        return self._free_slots.pop()

    def _take_region(self, slot: int, tokens: int) -> None:
        capacity = _REGION_MIN
        while capacity < tokens + 1:
            capacity *= 2
        free = self._free_regions.get(capacity)
        base = free.pop() if free else self._more(capacity)
        self._base[slot], self._capacity[slot] = base, capacity
        self._heads[2 * base : 2 * (base + capacity)] = _NO_POSITION

    def _more(self, capacity: int) -> int:
        base = len(self._tokens)
        self._tokens = np.concatenate([self._tokens, np.zeros(capacity, np.int32)])
        self._chain = np.concatenate([self._chain, np.full(capacity, _NO_POSITION, np.int32)])
        self._heads = np.concatenate([self._heads, np.full(2 * capacity, _NO_POSITION, np.int32)])
        return base

    def _move(self, slot: int) -> None:
        """Move a sequence that has outgrown its region."""
        base, capacity, length = (int(column[slot]) for column in (self._base, self._capacity, self._length))
        tokens = self._tokens[base : base + length].copy()
        self._free_regions.setdefault(capacity, []).append(base)
        self._take_region(slot, 2 * capacity - 1)
        self._length[slot] = 0
        self._fill(slot, tokens)

    # Tokens.

    def _buckets(self, slots: Int64 | int, before: Int32, last: Int32) -> Int64:
        """Return the bucket of positions that end with these two tokens."""
        mixed = before.astype(np.uint64) * _MIX_A + last.astype(np.uint64) * _MIX_B
        mixed ^= mixed >> np.uint64(29)
        within = (mixed * _MIX_A) >> np.uint64(20)
        size = 2 * self._capacity[slots]
        found: Int64 = 2 * self._base[slots] + (within.astype(np.int64) & (size - 1))
        return found

    def _fill(self, slot: int, token_ids: Int32Vector) -> None:
        """Add all tokens of an empty sequence at once."""
        base, count = int(self._base[slot]), len(token_ids)
        self._tokens[base : base + count] = token_ids
        self._length[slot] = count
        if count < 2:
            return
        buckets = self._buckets(slot, token_ids[:-1], token_ids[1:])
        order = np.argsort(buckets, kind="stable")
        # Positions of the second token of each pair.
        places = (order + 1).astype(np.int32)
        same = np.concatenate([[False], buckets[order][1:] == buckets[order][:-1]])
        self._chain[base + places] = np.where(same, np.roll(places, 1), _NO_POSITION)
        self._chain[base] = _NO_POSITION
        # Of several positions in a bucket, the last one is kept.
        self._heads[buckets[order]] = places

    def _append(self, slots: Int64, token_ids: Int32) -> None:
        """Add one token to each of some distinct sequences."""
        full = slots[self._length[slots] >= self._capacity[slots]]
        for slot in full.tolist():
            self._move(slot)
        places, bases = self._length[slots], self._base[slots]
        at = bases + places
        self._tokens[at] = token_ids
        self._length[slots] = places + 1
        paired = places > 0
        if not paired.all():
            self._chain[at[~paired]] = _NO_POSITION
            slots, places, at, token_ids = slots[paired], places[paired], at[paired], token_ids[paired]
        buckets = self._buckets(slots, self._tokens[at - 1], token_ids)
        self._chain[at] = self._heads[buckets]
        self._heads[buckets] = places

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Return drafts for N sequences: int32 [N] and int32 [drafts]. See `Drafter`."""
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
        """Return the position, within each sequence, with the longest common past; else `_NO_POSITION`."""
        bases, lengths = self._base[slots], self._length[slots]
        last = bases + lengths - 1
        back = np.arange(_PAST_MAX)
        past = self._past(last, lengths, back, -2)
        best = np.full(len(slots), _NO_POSITION, np.int64)
        # At least two tokens must be equal.
        longest = np.ones(len(slots), np.int64)
        place = np.where(lengths > 1, self._chain[np.maximum(last, 0)], _NO_POSITION).astype(np.int64)
        for _ in range(_CANDIDATES):
            there = place >= 0
            if not there.any():
                break
            candidate = self._past(bases + np.maximum(place, 0), place + 1, back, -3)
            equal = np.where(there, (candidate == past).cumprod(axis=1).sum(axis=1), 0)
            better = equal > longest
            best[better], longest[better] = place[better], equal[better]
            place = np.where(there, self._chain[bases + np.maximum(place, 0)], _NO_POSITION).astype(np.int64)
        return best

    def _past(self, at: Int64, known: Int64, back: Int64, missing: int) -> Int32:
        """Return the tokens at and before some positions, the newest first: [N, _PAST_MAX]; `missing` where
        there are none.
        """
        tokens = self._tokens[np.maximum(at[:, None] - back, 0)]
        found: Int32 = np.where(back < known[:, None], tokens, np.int32(missing))
        return found

    def _continue(self, slots: Int64, origins: Int64, wanted: Int32) -> tuple[Int32Vector, Int32Vector]:
        """Return what followed the origins. At the end of the text it goes on as if the text were repeated."""
        found = origins >= 0
        counts = np.where(found, wanted, 0).astype(np.int32)
        if not counts.any():
            return counts, int32()
        rows = np.repeat(np.arange(len(slots)), counts)
        ahead = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        period = (self._length[slots] - 1 - origins)[rows]
        places = self._base[slots][rows] + origins[rows] + 1 + ahead % period
        return counts, self._tokens[places]
