"""Numbers for embeddings that stand in for tokens' ids, so that blocks of them are named as all others are.

A number is negative, as no token's id is, and never stands for two different rows. A row that was forgotten gets a
new number when it comes again. When all numbers have been given out, the count begins anew under another root name.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from pageant.protocol.allocation import Admission
from pageant.protocol.arrays import Int32Vector, UInt8Vector
from pageant.protocol.embedding import NAME_BYTES

__all__ = ["EmbeddingNumbers"]

MOST_LEAST = 65_536
"""Rows that are remembered of a pool at least, however small it is."""
_FIRST = -2
_LAST = -(2**31)


class EmbeddingNumbers:
    """Numbers of the rows of one pool; they mean nothing to another one.

    Args:
        most: rows that are remembered. A number that is forgotten while its blocks are cached costs a hit.
    """

    def __init__(self, most: int, first: int = _FIRST) -> None:
        self._most, self._first = most, first
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._next = first
        self.generation = 0
        """How often the count has begun anew; part of the root name of sequences with such numbers, from 1 on."""

    @classmethod
    def of_pool(cls, num_tokens: int) -> EmbeddingNumbers:
        """Return numbers for a pool of so many tokens: twice as many, since there may be tiers below it."""
        return cls(max(MOST_LEAST, 2 * num_tokens))

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, token_ids: Int32Vector, admission: Admission) -> Int32Vector:
        """Return token ids with numbers in place of placeholders, int32 [tokens].

        Under the root name of tokens, numbers of the first generation mean no other rows, so that a text before an
        image is shared with prompts that have none.
        """
        assert admission.embed_names is not None, "a prompt of tokens needs no numbers"
        numbers = self.number(admission.embed_names)
        places = np.arange(len(numbers)) if admission.embed_places is None else admission.embed_places
        token_ids = token_ids.copy()
        token_ids[places] = numbers
        return token_ids

    def number(self, names: UInt8Vector) -> Int32Vector:
        """Return the numbers of rows, by their names [N * NAME_BYTES]."""
        data = names.tobytes()
        count = len(data) // NAME_BYTES
        if self._next - count < _LAST:
            self._numbers.clear()
            self._next = self._first
            self.generation += 1
        found = np.empty(count, np.int32)
        for index in range(count):
            found[index] = self._number(data[index * NAME_BYTES : (index + 1) * NAME_BYTES])
        while len(self._numbers) > self._most:
            self._numbers.popitem(last=False)
        return found

    def _number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next
            self._next -= 1
        else:
            self._numbers.move_to_end(name)
        return number
