"""What changes of every sequence with every step, by columns: so that a step of any number of decoding sequences is a
few operations on arrays, and only those are visited that need a block, or have filled one."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

SLOTS_FIRST = 64  # doubled when they are all taken


class Columns:
    """A slot of every column for each open sequence."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clear()

    def clear(self) -> None:
        """Nobody has a slot."""
        self._slots: dict[int, int] = {}  # by serial
        self._free: list[int] = []
        self.room = np.zeros(0, np.int64)  # tokens that its blocks have slots for
        self.granted = np.zeros(0, np.int64)  # tokens that it has been granted slots for, guesses apart
        self.granted_step = np.zeros(0, np.int64)  # by the exchange of this step
        self.granted_before = np.zeros(0, np.int64)  # tokens that it had been granted before that exchange
        self.second_step = np.zeros(0, np.int64)  # of the exchange that granted these,
        self.second_before = np.zeros(0, np.int64)  # and tokens that it had been granted before that one
        self.give_back_from = np.zeros(
            0, np.int64
        )  # with a window: a token that reaches fewer blocks than are held
        self.unnamed = np.zeros(0, np.bool_)  # whether a full block waits to be granted, and so for its name
        self.tails = np.zeros((0, self._block_size), "<i4")  # known tokens after its last full block
        self.num_tail = np.zeros(0, np.int64)  # how many

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, serial: int) -> bool:
        return serial in self._slots

    def open(self, serial: int, tail: Int32) -> int:
        """A sequence comes, with the tokens after its last full block. Returns its slot."""
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
        """It is gone."""
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
        """The slots of some sequences, -1 for one that has none."""
        return np.fromiter(map(self._slots.get, serials.tolist(), repeat(-1)), np.int64, len(serials))

    # What a step changes.

    def lacked(self, slots: Int64, lengths: Int32) -> Int64:
        """How many stretches each of these lacks, which have no room for so many tokens."""
        stretches: Int64 = -((self.room[slots] - lengths) // self._block_size)
        return stretches

    def begins(self, slots: Int64, tokens: Int32, computed_step: int) -> Int64:
        """The first token that each of these computes when it is granted so many now, or in the two steps before, as
        far as these have not been computed; -1 for one that may have more such steps behind it."""
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
        """They are granted so many tokens, all together."""
        self.second_before[slots] = self.granted_before[slots]
        self.second_step[slots] = self.granted_step[slots]
        self.granted_before[slots] = self.granted[slots]
        self.granted[slots] = tokens
        self.granted_step[slots] = step

    def withdraw(self, slots: Int64, tokens: Int32) -> None:
        """Of what they were granted, no more than so many tokens have been computed."""
        for granted in (self.granted, self.granted_before, self.second_before):
            np.minimum.at(granted, slots, tokens)

    def learn(self, slots: Int64, token_ids: Int32) -> Int64:
        """A token of each of these, which are distinct. Returns the places among them of those whose tail has begun
        with that, or is full."""
        ends = self.num_tail[slots]
        self.tails[slots, ends] = token_ids
        self.num_tail[slots] = ends + 1
        places: Int64 = ((ends == 0) | (ends + 1 == self._block_size)).nonzero()[0]
        return places


def rounds(slots: Int64) -> list[Int64]:
    """The places of `slots`, parted so that each part has no slot twice, and those of one slot are in order."""
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
