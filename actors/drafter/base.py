"""The interface of drafters; see docs/writing-a-drafter.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pageant.actors.runtime.classes import load_object
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.drafting import Speculation
from pageant.protocol.errors import TopologyError

__all__ = ["Drafter", "SequenceDrafter", "load_drafter"]


class Drafter(Protocol):
    """Makes drafts for many sequences at a time. Constructed with the topology's `Speculation`."""

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """Follow a sequence with these known tokens, int32 [tokens]."""

    def close(self, serial: int) -> None:
        """Forget a sequence."""

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Return drafts for N sequences.

        serials: int64 [N]. counts: int32 [N], the new tokens of each. token_ids: int32 [sum of counts], the new
        tokens, sequence by sequence. wanted: int32 [N], the most drafts for each. Returns the number of drafts
        of each, int32 [N], and all drafts, int32 [their sum].
        """


class SequenceDrafter:
    """A `Drafter` that makes drafts for one sequence at a time, from its tokens. A subclass implements `guess`."""

    def __init__(self, settings: Speculation) -> None:
        self.settings = settings
        self._tokens: dict[int, list[int]] = {}

    def guess(self, token_ids: Sequence[int], wanted: int) -> Sequence[int]:
        """Return at most `wanted` tokens that may follow these."""
        raise NotImplementedError

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """Follow a sequence; token_ids: int32 [tokens]. See `Drafter`."""
        self._tokens[serial] = token_ids.tolist()

    def close(self, serial: int) -> None:
        """See `Drafter`."""
        self._tokens.pop(serial, None)

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Return drafts for N sequences: int32 [N] and int32 [drafts]. See `Drafter`."""
        new = np.split(token_ids, np.cumsum(counts)[:-1])
        guesses: list[int] = []
        found = []
        for serial, more, most in zip(serials.tolist(), new, wanted.tolist(), strict=True):
            tokens = self._tokens[serial]
            tokens.extend(more.tolist())
            guess = list(self.guess(tokens, most))
            found.append(len(guess))
            guesses.extend(guess)
        return int32(found), int32(guesses)


def load_drafter(settings: Speculation) -> Drafter:
    """Return the drafter of that method, or of the class that `module:Class` names.

    Raises:
        TopologyError: there is no such class, or it lacks a method.
    """
    if ":" not in settings.method:
        from pageant.actors.drafter.ngram import NgramDrafter

        return NgramDrafter(settings)
    place = "speculation.method"
    made = load_object(settings.method, place)
    for method in ("open", "close", "propose"):
        if not callable(getattr(made, method, None)):
            raise TopologyError(place, f"{settings.method!r} has no method {method!r}, which a drafter needs")
    drafter: Drafter = made(settings)
    return drafter
