"""What a drafter of one's own is: see docs/writing-a-drafter.md."""

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
    """Guesses for many sequences at a time. Made with the topology's `Speculation`."""

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """Follow a sequence, of which these tokens are known."""

    def close(self, serial: int) -> None:
        """Forget it."""

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Sequence `serials[i]` has `counts[i]` new tokens, next in `token_ids`. Return how many drafts there are for
        each, at most `wanted[i]`, and all of them in one."""


class SequenceDrafter:
    """A `Drafter` that guesses for one sequence at a time, from its tokens: a subclass has `guess`."""

    def __init__(self, settings: Speculation) -> None:
        self.settings = settings
        self._tokens: dict[int, list[int]] = {}

    def guess(self, token_ids: Sequence[int], wanted: int) -> Sequence[int]:
        """Return at most `wanted` tokens that may follow these."""
        raise NotImplementedError

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        """See `Drafter`."""
        self._tokens[serial] = token_ids.tolist()

    def close(self, serial: int) -> None:
        """See `Drafter`."""
        self._tokens.pop(serial, None)

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """See `Drafter`."""
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
    """The drafter of that method, or the class that `module:Class` names.

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
