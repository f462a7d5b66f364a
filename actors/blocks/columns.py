"""State of sequences that changes with every step, by columns.

A step of any number of decoding sequences is a few operations on arrays. Only sequences that need a block, or
have filled one, are visited.
"""

from __future__ import annotations

from itertools import repeat

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

# Slots at first. Their number doubles when all are taken.
SLOTS_FIRST = 64
# The slot of a sequence that has none.
NO_SLOT = -1


class Columns:
    """A slot of every column for each open sequence. Columns are int64 [slots] unless they say otherwise."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clear()

    def clear(self) -> None:
        """Free all slots."""
        # The slot of each open sequence, by serial.
        self._slots: dict[int, int] = {}
        # Slots without a sequence.
        self._free: list[int] = []
        # Tokens that the sequence's blocks have slots for.
        self.room = np.zeros(0, np.int64)
        # Tokens that it has been granted slots for, drafts excluded. Never above `room`.
        self.granted = np.zeros(0, np.int64)
        # The step of the exchange that granted them.
        self.granted_step = np.zeros(0, np.int64)
        # Tokens that it had been granted before that exchange.
        self.granted_before = np.zeros(0, np.int64)
        # The step of the exchange that granted `granted_before`.
        self.second_step = np.zeros(0, np.int64)
        # Tokens that it had been granted before that one.
        self.second_before = np.zeros(0, np.int64)
        # With a window: the first token that reaches fewer blocks than are held.
        self.free_from = np.zeros(0, np.int64)
        # bool [slots]: a full block group waits to be granted, and thereby indexed.
        self.unnamed = np.zeros(0, np.bool_)
        # int32 [slots, block_size]: known tokens after the last full block group.
        self.tails = np.zeros((0, self._block_size), "<i4")
        # How many tokens of `tails` are known; below block_size between exchanges.
        self.num_tail = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, serial: int) -> bool:
        return serial in self._slots

    def open(self, serial: int, tail: Int32) -> int:
        """Give a new sequence a slot and return it. tail: int32 [tokens], the tokens after its last full block."""
        if not self._free:
            self._extend()
        slot = self._slots[serial] = self._free.pop()
        self.room[slot] = self.granted[slot] = self.granted_step[slot] = self.granted_before[slot] = 0
        self.second_step[slot] = self.second_before[slot] = 0
        self.unnamed[slot] = False
        self.tails[slot, : len(tail)] = tail
        self.num_tail[slot] = len(tail)
        return slot

    def close(self, serial: int) -> None:
        """Free the slot of a sequence."""
        self._free.append(self._slots.pop(serial))

    def _extend(self) -> None:
        before = len(self.room)
        more = max(SLOTS_FIRST, before)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(
                    self,
                    name,
                    np.concatenate([column, np.zeros_like(column, shape=(more, *column.shape[1:]))]),
                )
        self._free = list(range(before, before + more))[::-1]

    def find(self, serials: Int64) -> Int64:
        """Return the slots of sequences, or NO_SLOT: int64 [N] in and out."""
        return np.fromiter(map(self._slots.get, serials.tolist(), repeat(NO_SLOT)), np.int64, len(serials))

    # What a step changes.

    def lacked(self, slots: Int64, lengths: Int32) -> Int64:
        """Return how many block groups each sequence lacks, none of which has room for `lengths` tokens.

        slots: int64 [N]. lengths: int32 [N]. Returns int64 [N].
        """
        block_groups: Int64 = -((self.room[slots] - lengths) // self._block_size)
        return block_groups

    def begins(self, slots: Int64, tokens: Int32, computed_step: int) -> Int64:
        """Return the first token that each sequence may compute from now on: int64 [N].

        slots: int64 [N]. tokens: int32 [N], the tokens that it is granted now. Counts this grant and the two
        before, as far as their steps have not been computed. The answer is -1 for a sequence that may have more
        such steps.
        """
        granted, before, step = self.granted[slots], self.granted_before[slots], self.granted_step[slots]
        second, second_step = self.second_before[slots], self.second_step[slots]
        # A step's last token may have had to wait, and comes again.
        found: Int64 = np.minimum(granted, tokens - 1)
        last = np.minimum(np.minimum(before, granted - 1), found)
        found = np.where(step > computed_step, last, found)
        last_but_one = np.minimum(np.minimum(second, before - 1), found)
        found = np.where(second_step > computed_step, last_but_one, found)
        found[second_step > computed_step + 1] = -1
        return found

    def grant(self, slots: Int64 | int, tokens: Int32 | int, step: int) -> None:
        """Record that sequences have `tokens` slots granted in all. Both are [N] or single numbers."""
        self.second_before[slots] = self.granted_before[slots]
        self.second_step[slots] = self.granted_step[slots]
        self.granted_before[slots] = self.granted[slots]
        self.granted[slots] = tokens
        self.granted_step[slots] = step

    def withdraw(self, slots: Int64, tokens: Int32) -> None:
        """Record that no more than `tokens` of the granted tokens have been computed. slots, tokens: [N]."""
        for granted in (self.granted, self.granted_before, self.second_before):
            np.minimum.at(granted, slots, tokens)

    def learn(self, slots: Int64, token_ids: Int32) -> Int64:
        """Append a token to the tails of N distinct sequences. slots: int64 [N]. token_ids: int32 [N].

        Returns the indices of those whose tail has just begun, or is full.
        """
        ends = self.num_tail[slots]
        self.tails[slots, ends] = token_ids
        self.num_tail[slots] = ends + 1
        places: Int64 = ((ends == 0) | (ends + 1 == self._block_size)).nonzero()[0]
        return places

    def extend_tail(self, slot: int, token_ids: Int32) -> int:
        """Append tokens to the tail of a sequence, as many as fill it. Return how many. token_ids: int32 [N]."""
        first = int(self.num_tail[slot])
        count = min(len(token_ids), self._block_size - first)
        self.tails[slot, first : first + count] = token_ids[:count]
        self.num_tail[slot] = first + count
        return count


def rounds(slots: Int64) -> list[Int64]:
    """Return the indices of `slots`, int64 [N], in parts without a repeated slot; those of one slot are in
    order.
    """
    places = np.arange(len(slots))
    if len(slots) < 2:
        return [places]
    order = np.argsort(slots, kind="stable")
    found = slots[order]
    is_first = np.ones(len(slots), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    if is_first.all():
        return [places]
    rank = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return [np.sort(order[rank == number]) for number in range(int(rank.max()) + 1)]
